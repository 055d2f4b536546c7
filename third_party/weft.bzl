"""The project's two build macros: one concept, one header, one source, one target."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")

def _precompiled(name):
    """(copts, deps) that make the sources of a target begin with //third_party/precompiled:NAME, where that is enabled."""
    header = "third_party/precompiled/%s_precompiled.h" % name
    return (
        select({"//third_party/precompiled:enabled": ["-include", header], "//conditions:default": []}),
        select({"//third_party/precompiled:enabled": ["//third_party/precompiled:" + name], "//conditions:default": []}),
    )

def weft_library(name, srcs = None, hdrs = None, deps = [], **kwargs):
    """A cc_library of NAME.h and NAME.cc, whichever of the two exist.

    Args:
      name: the concept; also the stem of its files.
      srcs: sources, where they are not NAME.cc.
      hdrs: headers, where they are not NAME.h.
      deps: as cc_library.
      **kwargs: as cc_library.
    """
    copts, precompiled = _precompiled("library")
    cc_library(
        name = name,
        srcs = native.glob([name + ".cc"], allow_empty = True) if srcs == None else srcs,
        hdrs = native.glob([name + ".h"], allow_empty = True) if hdrs == None else hdrs,
        copts = copts,
        deps = deps + precompiled,
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
    copts, precompiled = _precompiled("test")
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        copts = copts,
        deps = deps + precompiled + [
            "//tests:message_of",
            "@sys_gtest_main//:sys_gtest_main",
        ],
        **kwargs
    )
