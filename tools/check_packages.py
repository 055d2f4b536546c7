#!/usr/bin/env python3
"""Checks that setup.sh's packages are all that the build and the tests need.

A machine on which a package was once installed by hand hides that setup.sh does not name it. This asks what
`apt-get install --no-install-recommends` of setup.sh's list would install on a machine that has nothing, and looks there for

  - every system header that a compile has read (the .d files in Bazel's output folder),
  - every library that a program was linked with (-l) and every shared library that it asks for (NEEDED),
  - every program that the build and the tests start: Bazel, the compiler and its parts, what the tree's scripts and
    genrules name, and what SOURCES_THAT_START says of other sources,
  - every Python module that a script imports.

What lies under $CUDA_HOME or /usr/local/cuda comes from no Debian package: it is left out and counted.
Prints a line per missing thing and exits 1 if there is any. Build first: it sees what has been built.
"""

import argparse
import ast
import fnmatch
import os
import re
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the tree

from packages import built, shell_commands  # noqa: E402
from packages.debian import Need, Problem, closure, lies_in, missing, packages_of, real, run  # noqa: E402

# Where Bazel lets actions and tests look for programs, and where root's shell looks further.
PATH = ["/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin"]

# Scripts that neither the build nor a test starts: a person does, and sees to what they need.
BY_HAND = ["benchmarks/peers/*", "deploy/*", "docs/api/make.sh", "tests/dtensor/checkpoint/dcp/make_*.py", "tests/golden/make_*.py", "tests/tools/pytorch_reads_export.py",
           "tools/bare_machine.sh", "tools/clang_tidy.sh", "tools/coverage.sh", "tools/gpu_check.sh"]

# Programs that a script can do without.
OPTIONAL = {
    "nvidia-smi": "tools/gpu_check_run.sh says so where there is none",
    "sudo": "setup.sh needs it only where it does not run as root",
}

# Sources, other than scripts of a shell, that start programs: which, beside those that Bazel has built.
SOURCES_THAT_START = {
    "runtime/base/start_program.cc": [],  # its caller says which
    "tests/benchmarks/overlap_report_test.py": ["python3"],
    "tests/deploy/manifests_test.py": ["bash"],
    "tests/runtime/launch/processes.cc": [],
    "tests/runtime/launch/worlds_program.cc": ["sh", "env"],  # itself
    "tests/runtime/store/certificates.h": ["sh", "openssl"],
    "tests/runtime/store/child.cc": [],
    "tests/tools/check_packages_test.py": [],  # it only quotes such sources
    "tests/tools/draw_trace_test.py": ["python3"],
    "tests/tools/export_test.py": [],  # tools:checkpoint
    "tests/tools/merge_traces_test.py": ["python3"],
    "tests/tools/faults/leftovers_test.cc": ["sleep"],
    "tests/tools/launcher/running_program.cc": ["bash", "env", "head", "seq", "sleep", "touch", "true"],
    "tools/faults/cables.cc": ["ip"],
    "tools/faults/job.cc": [],  # weft_run
    "tools/packages/debian.py": ["apt-get", "dpkg-query", "gcc", "git", "ldconfig", "readelf", "update-alternatives"],
}
_STARTS = {
    (".cc", ".h", ".cu", ".cuh"): r"\b(system|popen|execl[ep]?|execvp?e?|posix_spawnp?)\(",
    (".py",): r"\bsubprocess\.|\bos\.(system|popen|exec\w+|spawn\w+|posix_spawnp?)\(",
}


def on_path(name):
    """Where a program is, "" if nowhere."""
    tried = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in PATH]
    return next((path for path in tried if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def is_program(word):
    return bool(re.fullmatch(r"[\w.+/-]+", word)) and bool(on_path(word))


def build_programs(output_path):
    """Bazel, its Java, what the C++ toolchain starts, and what is linked into the repositories of system libraries."""
    base = built.base_of(output_path)
    with open(f"{base}/external/local_config_cc/BUILD", encoding="utf-8") as opened:
        toolchain = opened.read()
    tools = dict(re.findall(r'"(gcc|ar|ld)": "(/[^"]+)"', toolchain))
    if len(tools) != 3:
        raise Problem(f"{base}/external/local_config_cc/BUILD: expected the paths of gcc, ar and ld, found {tools}")
    needs = [Need(path, on_path(path), "Bazel's C++ toolchain") for path in tools.values()]
    for part in ["cc1plus", "as", "collect2", *["ld." + name for name in re.findall(r"-fuse-ld=(\w+)", toolchain)]]:
        path = run([tools["gcc"], "-print-prog-name=" + part]).stdout.strip()
        needs.append(Need(part, on_path(path), "gcc"))
    needs += [Need(name, on_path(name), "whoever builds") for name in ("bazel", "java")]
    for repository in sorted(os.listdir(f"{base}/external")):
        folder = f"{base}/external/{repository}/bin"
        if repository.startswith("sys_") and os.path.isdir(folder):
            needs += [Need(tool, real(f"{folder}/{tool}"), f"@{repository}") for tool in sorted(os.listdir(folder))]
    return needs


def interpreters(text):
    """The programs that the first line of a script names."""
    found = re.match(r"#!\s*(\S+)(?:[ \t]+(\S+))?", text)
    if not found:
        return []
    return [found[1], found[2]] if found[1].endswith("/env") and found[2] else [found[1]]


def genrule_commands(text):
    """The commands of the genrules in a BUILD or .bzl file, as (line, script)."""
    for found in re.finditer(r'\bcmd = (?:"""(.*?)"""|"((?:[^"\\\n]|\\.)*)")', text, re.DOTALL):
        command = (found[1] or found[2] or "").replace('\\"', '"')
        # Bazel's own $(location x) is none of the shell's $( ).
        command = re.sub(r"\$\([A-Za-z]+( [^)]*)?\)", "$made", command).replace("$$", "$")
        yield text.count("\n", 0, found.start()) + 1, command


# ". path", from the tree's root or from the folder of the script that reads it.
_READS = re.compile(r"""^\s*(?:\.|source) (?:([\w./-]+)|"\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)/([\w./-]+)")(?: .*)?$""", re.MULTILINE)


def read_by(path, text):
    """The scripts that the script at a path reads."""
    return {named or os.path.join(os.path.dirname(path), beside) for named, beside in _READS.findall(text)}


def libraries_of(files):
    """The scripts that others read, each with the names of its functions."""
    read = set().union(*(read_by(path, text) for path, text in files.items()))
    return {path: shell_commands.functions_of(files[path]) for path in sorted(read) if path in files}


def started_in(path, text, libraries={}):
    """The programs that a file of the tree starts, as (line, name)."""
    if os.path.basename(path) == "BUILD" or path.endswith(".bzl"):
        return [started for line, command in genrule_commands(text)
                for started in shell_commands.programs_of(command, is_program, line)]
    names = interpreters(text)
    found = [(1, name) for name in names + SOURCES_THAT_START.get(path, [])]
    if path.endswith(".sh") or any(os.path.basename(name) in ("bash", "sh") for name in names):
        read = read_by(path, text)
        functions = set().union(*(names for library, names in libraries.items() if library in text or library in read))
        found += shell_commands.programs_of(text, is_program, functions=functions)
    return found


def script_programs(files):
    needs = {}
    libraries = libraries_of(files)
    for path, text in files.items():
        for line, name in started_in(path, text, libraries):
            # With a "/" that is not the first character it is one of the tree's own.
            if name not in OPTIONAL and (name.startswith("/") or "/" not in name):
                needs.setdefault(name, Need(name, on_path(name), f"{path}:{line}"))
    return list(needs.values())


def undeclared_starts(files):
    """A line for each source that starts programs without a word in SOURCES_THAT_START, or the other way round."""
    starts = {path for path, text in files.items() for endings, pattern in _STARTS.items()
              if path.endswith(endings) and re.search(pattern, text)}
    declared = set(SOURCES_THAT_START)
    return [f"{path}: starts programs; say which in tools/check_packages.py, SOURCES_THAT_START"
            for path in sorted(starts - declared)] + [
                f"{path}: starts no program; take it out of SOURCES_THAT_START in tools/check_packages.py"
                for path in sorted(declared - starts)]


def imported_modules(files):
    """The Python modules that scripts import, but Python's own and the tree's."""
    readers = {}
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)) if path.endswith(".py") else []:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                readers.setdefault(name.split(".")[0], f"{path}:{node.lineno}")
    own = {part for path in files if path.endswith(".py") for part in path[:-len(".py")].split("/")}
    names = sorted(set(readers) - own - set(sys.stdlib_module_names))
    ask = "import importlib.util as u, sys\nfor name in sys.argv[1:]: s = u.find_spec(name); print(s.origin if s else '')"
    origins = run(["/usr/bin/python3", "-c", ask, *names]).stdout.split("\n")
    return [Need(f"Python's {name}", origin, readers[name]) for name, origin in zip(names, origins)]


def tracked_files(root):
    listed = run(["git", "-C", root, "ls-files", "-z"])
    files = {}
    for path in filter(None, listed.stdout.split("\0")):
        if not any(fnmatch.fnmatch(path, pattern) for pattern in BY_HAND) and os.path.isfile(f"{root}/{path}"):
            with open(f"{root}/{path}", encoding="utf-8", errors="replace") as opened:
                files[path] = opened.read()
    if not files:
        raise Problem(f"git lists no files in {root}: {listed.stderr.strip()}")
    return files


def check(output_path, setup):
    root = os.path.dirname(os.path.dirname(real(__file__)))
    if not output_path:
        asked = run(["bazel", "info", "output_path"], cwd=root)
        if asked.returncode != 0:
            raise Problem(f"bazel info output_path: {asked.stderr.strip()}")
        output_path = asked.stdout.strip()
    with open(setup or f"{root}/setup.sh", encoding="utf-8") as opened:
        packages = packages_of(opened.read())
    files = tracked_files(root)
    there = closure(packages)
    needs = {
        "headers": built.headers(output_path, root),
        "libraries": built.loaded_libraries(output_path) + built.linked_libraries(output_path),
        "programs": build_programs(output_path) + script_programs(files),
        "Python modules": imported_modules(files),
    }
    everything = [need for kind in needs.values() for need in kind]
    cuda = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    of_debian = [need for need in everything if not need.path or not lies_in(need.path, cuda)]
    lines = undeclared_starts(files) + missing(of_debian, there)
    for line in lines:
        print(line)
    if len(of_debian) < len(everything):
        print(f"left out: {len(everything) - len(of_debian)} files of {cuda}, which is no Debian package")
    print(", ".join(f"{len(kind)} {name}" for name, kind in needs.items()),
          f"checked against the {len(there)} packages that setup.sh brings: {len(lines)} problems")
    return 1 if lines else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_path", nargs="?", help="Bazel's output folder; by default `bazel info output_path`")
    parser.add_argument("--setup", help="a setup.sh to check in place of the tree's")
    arguments = parser.parse_args()
    try:
        return check(arguments.output_path, arguments.setup)
    except (Problem, OSError) as problem:
        return f"error: {problem}"


if __name__ == "__main__":
    sys.exit(main())
