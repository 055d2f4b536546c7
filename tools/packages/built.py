"""What a build has read from the system and what its programs load, by Bazel's output folder."""

import os
import re

from packages.debian import Need, Problem, lies_in, run


def base_of(output_path):
    """Bazel's output base: the output path is BASE/execroot/WORKSPACE/bazel-out."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(output_path))))


def _outputs(output_path):
    for folder, folders, files in os.walk(output_path):
        folders[:] = [name for name in folders if not name.endswith(".runfiles") and name not in ("testlogs", "_tmp")]
        for file in files:
            yield os.path.join(folder, file)


def _text(path):
    with open(path, encoding="utf-8") as opened:
        return opened.read()


def prerequisites(dependencies):
    """The files that the text of a .d file names after its target: the source first."""
    return dependencies.replace("\\\n", " ").partition(": ")[2].split()


def headers(output_path, root):
    """Every file that a compile has read, but those of the tree and those that the build has made."""
    base = base_of(output_path)
    readers = {}
    for file in _outputs(output_path):
        if not file.endswith(".d"):
            continue
        paths = prerequisites(_text(file))
        # Outputs stay when their sources have gone.
        gone = paths and not paths[0].startswith(("/", "bazel-out/", "external/")) and not os.path.exists(f"{root}/{paths[0]}")
        for path in [] if gone else paths:
            readers.setdefault(path, os.path.relpath(file, output_path))
    if not readers:
        raise Problem(f"no .d file under {output_path}: build first, bazel build //...")
    needs = []
    for path, reader in readers.items():
        # Repositories of system libraries link to the system's folders.
        whole = os.path.join(base, path) if path.startswith("external/") else path
        if whole.startswith("/") and not lies_in(whole, base) and not lies_in(whole, root):
            needs.append(Need(path, whole, reader))
    return needs


def _is_program(path):
    if not os.access(path, os.X_OK) or os.path.islink(path) or "/_objs/" in path or "/_cuda/" in path:
        return False
    with open(path, "rb") as opened:
        return opened.read(4) == b"\x7fELF"


def entries(dynamic):
    """The names of shared libraries, and the folders to look in first, in readelf's text of one program."""
    folders = [folder for found in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) for folder in found.split(":")]
    return re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic), folders


def loaded_libraries(output_path):
    """The shared libraries that built programs ask for, where the loader finds them."""
    programs = [file for file in _outputs(output_path) if _is_program(file)]
    if not programs:
        raise Problem(f"no program under {output_path}: build first, bazel build //...")
    cache = run(["/sbin/ldconfig", "--print-cache"]).stdout
    known = {}
    for name, path in re.findall(r"^\s+(\S+) \(libc6,x86-64.*\) => (\S+)$", cache, re.MULTILINE):
        known.setdefault(name, path)
    needs = {}
    for begin in range(0, len(programs), 100):
        batch = programs[begin:begin + 100]
        # With /dev/null there are always several, and readelf names each.
        text = run(["readelf", "--dynamic", "--wide", "/dev/null", *batch]).stdout
        for part in text.split("\nFile: ")[1:]:
            reader = os.path.relpath(part.split("\n", 1)[0], output_path)
            names, folders = entries(part)
            for name in names:
                beside = [f"{folder}/{name}" for folder in folders if os.path.exists(f"{folder}/{name}")]
                path = (beside + [known.get(name, "")])[0]
                needs.setdefault((name, path), Need(name, path, reader))
    return list(needs.values())


def linked_libraries(output_path):
    """The files that the linker takes for -l: the .so or .a that a -dev package brings."""
    said = run(["gcc", "-print-search-dirs"]).stdout
    searched = re.findall(r"^libraries: =(.*)$", said, re.MULTILINE)[0].split(":")
    needs = {}
    for file in _outputs(output_path):
        if not file.endswith(".params"):
            continue
        options = _text(file).split("\n")
        folders = searched + [option[2:] for option in options if option.startswith("-L")]
        for option in options:
            if option.startswith("-l") and option not in needs:
                tried = [os.path.join(folder, f"lib{option[2:]}{end}") for folder in folders for end in (".so", ".a")]
                path = next((path for path in tried if os.path.exists(path)), "")
                needs[option] = Need(option, path, os.path.relpath(file, output_path))
    return list(needs.values())
