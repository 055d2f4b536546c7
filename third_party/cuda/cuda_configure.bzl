"""Repository rule: @cuda, the CUDA toolkit found on this machine, or an empty stand-in.

Looks at $CUDA_HOME, then /usr/local/cuda. `--repo_env=WEFT_CUDA=0` makes it the stand-in;
`--repo_env=WEFT_CUDA_ARCHS=80,90` picks the architectures, of which the last is also there as PTX.
`--repo_env=WEFT_CUDA_QUICK=1` hardly optimises, which takes nvcc 13 a third of the time: for a check that everything compiles. It
is not for running: nothing has run so with --Ofast-compile, and at cicc -O1 nvcc 13.0 reads a kernel's parameter that a function
takes by reference from a wrong address (DequantizeKernel, block_quantize.cu).
"""

# name: (header that shows it is there, link option)
_LIBRARIES = {
    "cudart": ("cuda_runtime_api.h", "-lcudart"),
    "cublas": ("cublas_v2.h", "-lcublas"),
    "cublasLt": ("cublasLt.h", "-lcublasLt"),
    "cudnn": ("cudnn.h", "-lcudnn"),
    "nccl": ("nccl.h", "-lnccl"),
}

_HEADERS = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = {includes},
)
"""

_LIBRARY = """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
    deps = [":headers"],
)
"""

_DEFS = """CUDA_FOUND = {found}
CUDA_HOME = {home}
CUDA_VERSION = {version}
CUDA_ARCHS = {archs}
CUDA_QUICK_FLAGS = {quick_flags}
"""

def _find_home(ctx):
    if ctx.os.environ.get("WEFT_CUDA", "1") == "0":
        return ""
    for home in [ctx.os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]:
        if home and ctx.path(home + "/bin/nvcc").exists:
            return home
    return ""

def _cuda_configure_impl(ctx):
    home = _find_home(ctx)
    library_folder = home + ("/lib64" if home and ctx.path(home + "/lib64").exists else "/lib")
    version = ""
    is_quick = ctx.os.environ.get("WEFT_CUDA_QUICK", "0") == "1"
    quick_flags = ["-O0", "-DNDEBUG", "-Xcicc", "-O1", "-Xptxas", "-O1"] if is_quick else []
    if home:
        answer = ctx.execute([home + "/bin/nvcc", "--version"])
        if answer.return_code == 0:
            version = answer.stdout.split("release ")[-1].split(",")[0]
        if is_quick and "--Ofast-compile" in ctx.execute([home + "/bin/nvcc", "--help"]).stdout:
            quick_flags = ["-O0", "-DNDEBUG", "--Ofast-compile=max", "-Xptxas", "--suppress-stack-size-warning"]
        ctx.symlink(home + "/include", "include")
    build = _HEADERS.format(includes = ["include", "include/cccl"] if home else [])
    for name, (header, flag) in _LIBRARIES.items():
        have = bool(home) and ctx.path(home + "/include/" + header).exists
        build += _LIBRARY.format(
            name = name,
            linkopts = ["-L" + library_folder, "-Wl,-rpath," + library_folder, flag] if have else [],
        )
    ctx.file("BUILD", build)
    archs = ctx.os.environ.get("WEFT_CUDA_ARCHS", "80,90").split(",")
    ctx.file("defs.bzl", _DEFS.format(
        found = bool(home),
        home = repr(home),
        version = repr(version),
        archs = [arch for arch in archs if arch],
        quick_flags = repr(quick_flags),
    ))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["CUDA_HOME", "WEFT_CUDA", "WEFT_CUDA_ARCHS", "WEFT_CUDA_QUICK"],
    local = True,
)
