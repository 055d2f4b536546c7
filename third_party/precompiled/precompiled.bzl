"""precompiled_header: system headers that a compiler has read once, for the sources of this tree."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# What GCC calls what it has precompiled: it looks for it beside the header that it is told to include.
_SUFFIX = ".gch"

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # In a file of its own, so that it and what is made of it lie beside each other, under a name that no source has.
    header = ctx.actions.declare_file(ctx.label.name + "_precompiled.h")
    ctx.actions.run_shell(
        command = 'cat "${@:2}" >"$1"',
        arguments = [header.path] + [part.path for part in ctx.files.headers],
        inputs = ctx.files.headers,
        outputs = [header],
        mnemonic = "JoinHeaders",
    )
    precompiled = ctx.actions.declare_file(header.basename + _SUFFIX)
    read = ctx.actions.declare_file(ctx.label.name + "_precompiled.d")  # the headers; a source's own .d has them no more
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
    )
    command_line = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    ctx.actions.run(
        executable = toolchain.compiler_executable,
        arguments = command_line + [
            "-MD",
            "-MF",
            read.path,
            "-x",
            "c++-header",
            "-c",
            header.path,
            "-o",
            precompiled.path,
        ],
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [precompiled, read],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling " + ctx.label.name,
    )
    return [
        DefaultInfo(files = depset([precompiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([header, precompiled]))),
    ]

precompiled_header = rule(
    doc = "NAME_precompiled.h, which is `headers` one after the other, and what GCC has made of it, as headers of a C++ dependency.",
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "headers": attr.label_list(allow_files = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
