#ifndef WEFT_RUNTIME_DATA_DEFAULT_TEXT_H_
#define WEFT_RUNTIME_DATA_DEFAULT_TEXT_H_

#include <string>
#include <vector>

namespace weft {

// Where what the examples train on lies, which setup.sh puts into a Weft source tree: a text, data/jargon.txt, the Jargon
// File; images, the folder data/fashion-mnist with four IDX files (runtime/data/idx_file.h), Fashion-MNIST. Looks in
// the tree that `bazel run` was started in, then in the one that this program was built from or lies in (also
// where a launcher starts it), then in the one around the current folder.
// Errors: NotFound that says to run setup.sh, and names the source tree if there is one.
std::string DefaultTextPath();
std::string DefaultImagesPath();

// The same with the places to look in: each folder and those above it, in order. A Bazel output folder stands
// for the source tree that it belongs to.
std::string FindDefaultText(const std::vector<std::string>& start_folders);
std::string FindDefaultImages(const std::vector<std::string>& start_folders);

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_DEFAULT_TEXT_H_
