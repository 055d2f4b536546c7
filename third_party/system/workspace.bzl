"""The system libraries that the project links, one repository each."""

load("//third_party/cuda:cuda_configure.bzl", "cuda_configure")
load(":system_library.bzl", "system_library")

_ARCH = "/usr/include/x86_64-linux-gnu"

# Abseil 20220623 shared libraries; the linker drops the ones a target does not use.
_ABSL = ["-Wl,--push-state,--as-needed"] + ["-labsl_" + lib for lib in [
    "flags_parse", "flags_usage", "flags_usage_internal", "flags_reflection", "flags_config",
    "flags_marshalling", "flags_private_handle_accessor", "flags_commandlineflag",
    "flags_commandlineflag_internal", "flags_internal", "flags_program_name",
    "failure_signal_handler", "examine_stack", "statusor", "status", "cord", "cordz_info",
    "cordz_handle", "cordz_functions", "cord_internal", "exponential_biased", "strerror",
    "random_distributions", "random_seed_sequences", "random_seed_gen_exception",
    "random_internal_pool_urbg", "random_internal_randen", "random_internal_randen_hwaes",
    "random_internal_randen_hwaes_impl", "random_internal_randen_slow", "random_internal_platform",
    "random_internal_seed_material",
    "raw_hash_set", "hashtablez_sampler", "hash", "city", "low_level_hash",
    "synchronization", "graphcycles_internal", "stacktrace", "symbolize", "demangle_internal",
    "debugging_internal", "malloc_internal", "time", "civil_time", "time_zone",
    "str_format_internal", "strings", "strings_internal", "int128", "base", "spinlock_wait",
    "bad_optional_access", "bad_variant_access", "throw_delegate", "raw_logging_internal",
    "log_severity",
]] + ["-Wl,--pop-state", "-lpthread"]

def system_libraries():
    system_library(name = "sys_absl", probe = "absl/status/statusor.h", linkopts = _ABSL, package = "libabsl-dev", required = True)
    system_library(name = "sys_eigen", include_dirs = ["/usr/include/eigen3"], probe = "Eigen/Core", package = "libeigen3-dev", required = True)
    system_library(name = "sys_gtest", probe = "gmock/gmock.h", linkopts = ["-lgmock", "-lgtest", "-lpthread"], package = "libgmock-dev", required = True)
    system_library(name = "sys_gtest_main", probe = "gmock/gmock.h", linkopts = ["-lgmock_main", "-lgmock", "-lgtest", "-lpthread"], package = "libgmock-dev", required = True)
    system_library(name = "sys_benchmark", probe = "benchmark/benchmark.h", linkopts = ["-lbenchmark", "-lpthread"], package = "libbenchmark-dev")
    system_library(name = "sys_json", probe = "nlohmann/json.hpp", package = "nlohmann-json3-dev", required = True)
    system_library(name = "sys_hwy", probe = "hwy/highway.h", linkopts = ["-lhwy"], package = "libhwy-dev", required = True)
    system_library(name = "sys_isal", probe = "isa-l/crc.h", linkopts = ["-lisal"], package = "libisal-dev", required = True)
    system_library(name = "sys_dnnl", include_dirs = ["/usr/include", _ARCH], probe = "oneapi/dnnl/dnnl.hpp", linkopts = ["-ldnnl", "-lgomp"], package = "libdnnl-dev", required = True)
    system_library(name = "sys_grpc", probe = "grpcpp/grpcpp.h", linkopts = ["-lgrpc++", "-lgrpc", "-lgpr", "-lprotobuf", "-lpthread"], package = "libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc", tools = ["protoc", "grpc_cpp_plugin"], link_deps = ["@sys_absl//:sys_absl"], required = True)
    system_library(name = "sys_mpi", include_dirs = [_ARCH + "/mpi"], probe = "mpi.h", linkopts = ["-lmpi"], defines = ["OMPI_SKIP_MPICXX"], package = "libopenmpi-dev openmpi-bin", required = True)
    system_library(name = "sys_gloo", probe = "gloo/rendezvous/context.h", linkopts = ["-lgloo", "-lpthread"], package = "libgloo-dev", required = True)
    cuda_configure(name = "cuda")
