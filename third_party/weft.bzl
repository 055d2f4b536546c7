"""The project's two build macros: one concept, one header, one source, one target."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")

def weft_library(name, srcs = None, hdrs = None, **kwargs):
    """A cc_library of NAME.h and NAME.cc, whichever of the two exist.

    Args:
      name: the concept; also the stem of its files.
      srcs: sources, where they are not NAME.cc.
      hdrs: headers, where they are not NAME.h.
      **kwargs: as cc_library.
    """
    cc_library(
        name = name,
        srcs = native.glob([name + ".cc"], allow_empty = True) if srcs == None else srcs,
        hdrs = native.glob([name + ".h"], allow_empty = True) if hdrs == None else hdrs,
        **kwargs
    )

def weft_test(name, deps = [], size = "small", **kwargs):
    """A GoogleTest program of NAME.cc.

    Args:
      name: NAME_test, beside NAME_test.cc.
      deps: what it tests; GoogleTest and //tests:message_of are added.
      size: as cc_test.
      **kwargs: as cc_test.
    """
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        deps = deps + [
            "//tests:message_of",
            "@sys_gtest_main//:sys_gtest_main",
        ],
        **kwargs
    )
