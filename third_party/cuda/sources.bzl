"""cuda_sources: names CUDA sources so that they can be compiled elsewhere by the ordinary compiler."""

def cuda_sources(srcs, hdrs):
    """Filegroups `sources`, the files, and `units`, a .cc for each of `srcs` that includes it.

    Args:
      srcs: .cu and .cc files of this package.
      hdrs: headers.
    """
    units = []
    for src in srcs:
        unit = src.replace(".", "_") + "_unit.cc"
        native.genrule(
            name = unit.replace(".cc", ""),
            outs = [unit],
            cmd = "echo '#include \"%s/%s\"' > $@" % (native.package_name(), src),
        )
        units.append(unit)
    native.filegroup(name = "units", srcs = units)
    native.filegroup(name = "sources", srcs = srcs + hdrs)
