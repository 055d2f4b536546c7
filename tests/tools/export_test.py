"""What `checkpoint export` writes, read as the safetensors format says (https://github.com/huggingface/safetensors), by nothing
of Weft: names, dtypes, shapes and every bit of a checkpoint whose values follow from a formula. What reads that format
otherwise, such as PyTorch's safetensors.torch.load_file, reads the same bytes by the same rules.

Arguments: the tool, the file `latest` of tests/dtensor/checkpoint/golden/format-1.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

# As the format names them: bytes of an element, and how struct reads one (bf16 as its bits).
DTYPES = {"F64": (8, "d"), "F32": (4, "f"), "BF16": (2, "H"), "I64": (8, "q")}
# Of the step, as tests/dtensor/checkpoint/golden/make_golden.cc has saved it: dtype, shape, seed of the bits.
TENSORS = {
    "both": ("F64", [2], 8),
    "count": ("I64", [], 8),
    "first": ("F32", [3], 8),
    "second": ("BF16", [3], 8),
    "split": ("F32", [5, 2], 7),
}


def read_safetensors(path):
    """The tensors of a file by name, each with dtype, shape and bytes, and its texts. Raises ValueError if it is no such file."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    elements = data[8 + length :]
    texts = header.pop("__metadata__", {})
    if data[8:9] != b"{" or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("the header is no object, or its metadata no texts")
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        count = 1
        for extent in entry["shape"]:
            count *= extent
        if first != end or last - first != count * DTYPES[entry["dtype"]][0]:
            raise ValueError(f"{name} does not begin where the one before ends, or is not as long as its shape")
        tensors[name] = (entry["dtype"], entry["shape"], elements[first:last])
        end = last
    if end != len(elements):
        raise ValueError(f"{len(elements) - end} bytes belong to no tensor")
    return tensors, texts


def mix(value):
    """One step of splitmix64."""
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
    return value ^ value >> 31


def expected_bits(name, seed, count, size):
    """The elements' bits, as unsigned numbers: those of BoxBytes in tests/dtensor/checkpoint/state/state_cases.cc."""
    key = mix(seed)
    for byte in name.encode():
        key = mix(key ^ byte)
    return [mix((key + i) % (1 << 64)) % (1 << 8 * size) for i in range(count)]


class ExportTest(unittest.TestCase):
    """One export, of step 2, whose elements lie in the files of two ranks and two steps."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "export.safetensors")
        source = os.path.dirname(GOLDEN) + "@2"
        subprocess.run([TOOL, "export", source, "--to=" + cls.path], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_every_bit_is_there_under_its_name(self):
        tensors, texts = read_safetensors(self.path)
        self.assertEqual(sorted(tensors), sorted(TENSORS))
        for name, (dtype, shape, seed) in TENSORS.items():
            size, code = DTYPES[dtype]
            self.assertEqual(tensors[name][:2], (dtype, shape), name)
            data = tensors[name][2]
            bits = expected_bits(name, seed, len(data) // size, size)
            unsigned = {2: "H", 4: "I", 8: "Q"}[size]
            self.assertEqual(list(struct.unpack(f"<{len(bits)}{unsigned}", data)), bits, name)
            values = struct.unpack(f"<{len(bits)}{code}", data)
            wanted = struct.unpack(f"<{len(bits)}{code}", struct.pack(f"<{len(bits)}{unsigned}", *bits))
            self.assertEqual([str(value) for value in values], [str(value) for value in wanted], name)  # nan is not nan
        self.assertEqual(texts["flags"], '{"layers": "2"}')

    def test_a_file_that_is_changed_is_found_out(self):
        with open(self.path, "rb") as file:
            data = file.read()
        for changed in (data[:-1], data + b"\0", data[:8] + b" " + data[9:]):
            path = os.path.join(self.folder.name, "changed.safetensors")
            with open(path, "wb") as file:
                file.write(changed)
            with self.assertRaises(ValueError):
                read_safetensors(path)


if __name__ == "__main__":
    TOOL, GOLDEN = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
