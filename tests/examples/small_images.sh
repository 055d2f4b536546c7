# shellcheck shell=bash
# Sets of small images in IDX files, to be sourced.

# big_endian NUMBER: four bytes.
big_endian() {
  # shellcheck disable=SC2059
  printf "\\x$(printf '%02x' $(($1 >> 24 & 255)))\\x$(printf '%02x' $(($1 >> 16 & 255)))\\x$(printf '%02x' $(($1 >> 8 & 255)))\\x$(printf '%02x' $(($1 & 255)))"
}

# images NAME COUNT: 8 x 8 pixels of noise, of which the rows of one quarter are bright; the quarter is the class.
images() {
  {
    printf '\x00\x00\x08\x03'
    big_endian "$2"
    big_endian 8
    big_endian 8
    LC_ALL=C awk -v count="$2" 'BEGIN {
      seed = 7
      for (i = 0; i < count; i++) {
        for (p = 0; p < 64; p++) {
          seed = (seed * 1103515245 + 12345) % 2147483648
          printf "\\x%02x", int(seed / 65536) % 128 + (int(p / 16) == i % 4 ? 100 : 0)
        }
      }
    }' | xargs -0 printf '%b'
  } >"$1-images-idx3-ubyte"
  {
    printf '\x00\x00\x08\x01'
    big_endian "$2"
    awk -v count="$2" 'BEGIN { for (i = 0; i < count; i++) printf "\\x%02x", i % 4 }' | xargs -0 printf '%b'
  } >"$1-labels-idx1-ubyte"
}
