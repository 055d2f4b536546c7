// Manifests and files of ranks that are refused: corpus/ has one for each reason, as it would lie on a disk.

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/files/refused_corpus.h"

namespace weft {
namespace {

const std::map<std::string, std::string> kReasons = {
    {"manifest-empty.json", "is not a whole manifest: it does not begin with its checksum"},
    {"manifest-unsigned.json", "it does not begin with its checksum"},
    {"manifest-truncated.json", "its checksum is "},
    {"manifest-another-byte.json", "943bc074 was expected"},
    {"manifest-no-object.json", "it is not a JSON object"},
    {"manifest-lacks-a-field.json", "it lacks a field or has one of the wrong type: "},
    {"manifest-newer.json", "is of format 1000; this Weft reads formats up to 1"},
    {"manifest-small-world.json", "has more ranks than the world, 1"},
    {"manifest-path-upwards.json", "file '../../rank-00001' of a world of 2"},
    {"manifest-huge-extent.json", "an extent of 4611686018427387904, which is negative or too large"},
    {"manifest-unknown-mesh.json", "mesh 3 of 3"},
    {"manifest-partial.json", "is partial"},
    {"header-short.safetensors", "it has 7 bytes, the shortest has 10"},
    {"header-longer-than-its-file.safetensors", "its header would be 9223372036854775808 bytes long"},
    {"header-no-object.safetensors", "its header is not a JSON object"},
    {"header-unknown-dtype.safetensors", "a tensor has the unknown dtype F31"},
    {"header-gap.safetensors", "cannot lie in bytes 4 to 12 (expected to start at 0)"},
    {"header-truncated.safetensors", "its tensors take 8 bytes, it has 5"},
    {"header-no-pieces.safetensors", "its header has no 'weft.pieces'"},
    {"header-pieces-no-object.safetensors", "'weft.pieces' is no JSON object"},
    {"header-box-outside.safetensors", "a box does not lie in its tensor"},
    {"header-checksum-no-number.safetensors", "a checksum is not 8 hexadecimal digits"},
    {"header-path-upwards.safetensors", "a reference to another step is out of range"},
    {"header-another-type.safetensors", "the piece of 'a' is not among its tensors, or of another type"},
    {"header-unlisted.safetensors", "it has tensors that 'weft.pieces' does not list"},
    {"header-lacks-a-field.safetensors", "a piece lacks a field or has one of the wrong type"},
};

TEST(CorpusTest, EachIsRefusedForItsReason) {
  ExpectRefused("tests/dtensor/checkpoint/folder/corpus", kReasons,
                [](Files& files, const std::string& path) {
                  if (absl::StrContains(path, "/manifest-")) {
                    ParseManifest(path, ReadText(files, path, 1 << 20));
                  } else {
                    ReadPieceTable(*files.Open(path));
                  }
                });
}

}  // namespace
}  // namespace weft
