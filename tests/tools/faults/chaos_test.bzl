"""chaos_test: a script that hurts jobs with //tools:chaos."""

def chaos_test(name, trainers, size = "large", tags = []):
    """The script NAME.sh, which begins with `. tests/tools/faults/chaos.sh "$@" || exit 1`.

    Args:
      name: NAME.
      trainers: the programs that jobs run: the script's third argument, and more.
      size: as sh_test.
      tags: further ones.
    """
    programs = [
        "//tools:chaos",
        "//tools:weft_run",
    ] + trainers
    native.sh_test(
        name = name,
        size = size,
        srcs = [name + ".sh"],
        args = ["$(location %s)" % program for program in programs],
        data = ["chaos.sh"] + programs,
        tags = [
            "exclusive",  # its faults come at moments of a training
            "no-tsan",  # gRPC
        ] + tags,
    )
