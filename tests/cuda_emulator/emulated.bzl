"""emulated_cuda_library: CUDA sources compiled to run on the CPU, see README.md."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def emulated_cuda_library(name, folder, deps = []):
    """A cc_library of what a folder of CUDA sources makes, by the ordinary compiler.

    Args:
      name: of the target.
      folder: a package with `cuda_sources`.
      deps: as of the CUDA target, without CUDA's libraries.
    """
    cc_library(
        name = name,
        testonly = True,
        srcs = [folder + ":units"],
        copts = [
            "-O1",  # a whole device compiles in half the time, and its tests are small
            "-Wno-unknown-pragmas",
            "-Wno-maybe-uninitialized",  # as for all sources, see .bazelrc
        ],
        textual_hdrs = [folder + ":sources"],
        visibility = ["//tests:__subpackages__"],
        deps = deps + ["//tests/cuda_emulator:emulator"],
        alwayslink = True,
    )
