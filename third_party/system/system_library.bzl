"""Repository rule: wraps a library installed by the system's package manager.

Yields @NAME//:NAME (a cc_library) and @NAME//:defs.bzl (AVAILABLE, if_available).
A missing library gives AVAILABLE = False and a cc_library that only defines
WEFT_HAVE_<NAME>=0; a missing required library fails with the package to install.
`--repo_env=WEFT_DISABLE=gloo,mpi` makes the rule act as if those were missing.
"""

_DEFS = """AVAILABLE = {available}

def if_available(yes, no = []):
    return yes if AVAILABLE else no
"""

_BUILD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "{name}",
    hdrs = glob({globs}, allow_empty = True),
    includes = {includes},
    defines = ["WEFT_HAVE_{upper}={have}"] + {defines},
    linkopts = {linkopts},
    deps = {deps},
)
"""

def _impl(ctx):
    name = ctx.name
    short = name[len("sys_"):] if name.startswith("sys_") else name
    disabled = short in ctx.os.environ.get("WEFT_DISABLE", "").split(",")
    root = None
    if not disabled:
        for d in ctx.attr.include_dirs:
            if ctx.path(d + "/" + ctx.attr.probe).exists:
                root = d
                break
    available = root != None
    if not available and ctx.attr.required:
        fail("%s not found: no %s under %s. Install it, e.g. apt-get install %s" %
             (short, ctx.attr.probe, ctx.attr.include_dirs, ctx.attr.package))

    # /usr/include is already on the compiler's path; anything else is linked in.
    default_dir = root in ["/usr/include", "/usr/include/x86_64-linux-gnu"]
    link = available and not default_dir
    if link:
        ctx.symlink(root, "include")
    for tool in ctx.attr.tools:
        path = ctx.which(tool) if available else None
        if path:
            ctx.symlink(path, "bin/" + tool)
    ctx.file("defs.bzl", _DEFS.format(available = available))
    ctx.file("BUILD", _BUILD.format(
        name = name,
        upper = short.upper(),
        have = 1 if available else 0,
        defines = ctx.attr.defines if available else [],
        globs = ["include/**"] if link else [],
        includes = ["include"] if link else [],
        linkopts = ctx.attr.linkopts if available else [],
        deps = [str(d) for d in ctx.attr.link_deps] if available else [],
    ) + ("\nexports_files(glob([\"bin/*\"]))\n" if available and ctx.attr.tools else ""))

system_library = repository_rule(
    implementation = _impl,
    attrs = {
        "defines": attr.string_list(),
        "include_dirs": attr.string_list(default = ["/usr/include"]),
        "linkopts": attr.string_list(),
        "link_deps": attr.string_list(),
        "package": attr.string(mandatory = True),
        "probe": attr.string(mandatory = True),
        "required": attr.bool(default = False),
        "tools": attr.string_list(),
    },
    configure = True,
    environ = ["WEFT_DISABLE"],
    local = True,
)
