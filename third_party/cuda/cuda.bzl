"""cuda_library: .cu sources compiled by nvcc, usable as a dependency of C++ targets."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda//:defs.bzl", "CUDA_ARCHS", "CUDA_FOUND", "CUDA_HOME", "CUDA_QUICK_FLAGS", "CUDA_VERSION")

def _no_providers(_ctx):
    return []

bool_setting = rule(
    implementation = _no_providers,
    build_setting = config.bool(flag = True),
)

def if_cuda(yes, no = []):
    """A select on --config=cuda."""
    return select({
        "//third_party/cuda:enabled": yes,
        "//conditions:default": no,
    })

_MODE_FLAGS = {
    "dbg": ["-g", "-lineinfo"],
    "fastbuild": ["-O1"],
    "opt": ["-O3", "-DNDEBUG"],
}

def _nvcc_flags(ctx):
    flags = ["-std=c++20", "--expt-relaxed-constexpr", "--Werror=cross-execution-space-call"]
    flags += ["-Xcompiler", "-fPIC,-Wall,-Wextra,-Wno-unknown-pragmas,-ffp-contract=off"]
    flags += CUDA_QUICK_FLAGS or _MODE_FLAGS[ctx.var["COMPILATION_MODE"]]
    for arch in CUDA_ARCHS:
        flags += ["-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)]
    return flags + ["-gencode", "arch=compute_%s,code=compute_%s" % (CUDA_ARCHS[-1], CUDA_ARCHS[-1])]

def _compile(ctx, toolchain, context, src):
    out = ctx.actions.declare_file("_cuda/%s/%s.o" % (ctx.label.name, src.basename))
    args = ctx.actions.args()
    args.add_all(_nvcc_flags(ctx) + ctx.attr.copts)
    args.add_all(context.defines, format_each = "-D%s")
    args.add_all(
        depset(["."], transitive = [context.quote_includes, context.includes]),
        format_each = "-I%s",
    )
    args.add_all(context.system_includes, before_each = "-isystem")
    args.add_all(["-ccbin", toolchain.compiler_executable, "-c", src, "-o", out])
    ctx.actions.run(
        executable = CUDA_HOME + "/bin/nvcc",
        arguments = [args],
        inputs = depset([src] + ctx.files.hdrs, transitive = [context.headers]),
        outputs = [out],
        mnemonic = "CudaCompile",
        progress_message = "nvcc %s %s" % (CUDA_VERSION, src.short_path),
        env = {"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"},
    )
    return out

def _cuda_library_impl(ctx):
    if not CUDA_FOUND:
        fail("--config=cuda, but no CUDA toolkit: set --repo_env=CUDA_HOME=/path/to/cuda")
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    objects = [_compile(ctx, toolchain, deps.compilation_context, src) for src in ctx.files.srcs]
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [deps.linking_context],
        alwayslink = ctx.attr.alwayslink,
        disallow_dynamic_library = True,
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
    )
    merged = cc_common.merge_cc_infos(cc_infos = [own] + [dep[CcInfo] for dep in ctx.attr.deps])
    return [
        DefaultInfo(files = depset(objects)),
        CcInfo(compilation_context = merged.compilation_context, linking_context = linking),
    ]

cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "alwayslink": attr.bool(default = False),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu"]),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _link_only_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    return [CcInfo(linking_context = merged.linking_context)]

link_only = rule(
    doc = "What `deps` link, without their headers: who depends on it compiles as without, and --config=cuda compiles it no second time.",
    implementation = _link_only_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
