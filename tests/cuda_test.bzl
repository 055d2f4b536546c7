"""cuda_test: the same test on the device cuda, emulated here and real on a machine with a GPU."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def cuda_test(name, deps, size = "medium"):
    """NAME, which emulates the device (//tests/cuda_emulator), and NAME_on_gpu, for a machine that has one.

    Args:
      name: NAME_test, beside NAME_test.cc.
      deps: what it tests; GoogleTest, //tests:message_of and the device are added.
      size: as cc_test.
    """
    common = deps + [
        "//tests:message_of",
        "@sys_gtest_main//:sys_gtest_main",
    ]
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        tags = ["no-cuda"],  # it cannot have the real device too
        deps = common + ["//tests/cuda_emulator:kernels"],
    )
    cc_test(
        name = name + "_on_gpu",
        size = size,
        srcs = [name + ".cc"],
        tags = [
            "gpu",
            "manual",
        ],
        deps = common + [
            "//ops/cuda",
            "//ops/cuda/cublaslt",
        ],
    )
