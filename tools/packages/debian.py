"""What Debian's packages hold, and which of them a machine has after setup.sh."""

import collections
import os
import re
import subprocess
import tempfile

# A thing that is needed: its name, the file on this machine ("" if there is none), who reads or starts it.
Need = collections.namedtuple("Need", ["name", "path", "reader"])

_MERGED = r"/(bin|sbin|lib|lib32|lib64|libx32)/"


class Problem(Exception):
    """What keeps the check from being made."""


def run(command, **kwargs):
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **kwargs)


def packages_of(setup):
    """The list in the text of setup.sh."""
    found = re.search(r"^packages=\(\n(.*?)^\)", setup, re.MULTILINE | re.DOTALL)
    if not found:
        raise Problem("setup.sh has no list `packages=( ... )`")
    return found[1].split()


def installed_by(simulation):
    """The packages that apt-get would install, by what it has printed."""
    return set(re.findall(r"^Inst ([^ :]+)", simulation, re.MULTILINE))


def _simulate(packages):
    """apt-get's answer on a machine that has no package at all."""
    with tempfile.NamedTemporaryFile() as empty:
        options = ["Dir::State::status=" + empty.name, "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="]
        return run(["apt-get", "--simulate", *[f"--option={option}" for option in options], "install",
                    "--no-install-recommends", *packages])


def first_error(said):
    """The first line of what apt-get complains of."""
    lines = said.stderr.strip().splitlines()
    return next((line for line in lines if line.startswith("E: ")), lines[0] if lines else f"exit code {said.returncode}")


def closure(packages):
    """All that is there after setup.sh: what every Debian has, setup.sh's packages, and what these depend on."""
    listed = run(["dpkg-query", "--show", "--showformat", "${Essential} ${Package}\n"]).stdout
    wanted = ["apt", *re.findall(r"^yes (\S+)$", listed, re.MULTILINE), *packages]
    said = _simulate(wanted)
    if said.returncode != 0:
        # No package lists, or a list from before a package was there.
        update = run(["apt-get", "update", "--quiet=2", "--option=APT::Update::Error-Mode=any"])
        if update.returncode != 0:
            raise Problem("the package lists are missing or old, and cannot be fetched (as root: apt-get update): "
                          f"{first_error(said)}; {first_error(update)}")
        said = _simulate(wanted)
    if said.returncode != 0:
        raise Problem(f"apt-get cannot install what setup.sh lists: {first_error(said)}")
    return installed_by(said.stdout)


def real(path):
    return os.path.realpath(path)


def lies_in(path, folder):
    return (real(path) + "/").startswith(real(folder) + "/")


def chain(path):
    """A path and what it links to, step by step, and whether one of /etc/alternatives decides where it leads.

    Folders are resolved. For a choice of /etc/alternatives all that could be chosen are there.
    """
    found, has_choice = [], False
    while len(found) < 20:
        path = os.path.join(real(os.path.dirname(path)), os.path.basename(path))
        found.append(path)
        if not os.path.islink(path):
            break
        target = os.path.join(os.path.dirname(path), os.readlink(path))
        if os.path.dirname(target) == "/etc/alternatives":
            has_choice = True
            query = run(["update-alternatives", "--query", os.path.basename(target)]).stdout
            found += [real(other) for other in re.findall(r"^Alternative: (\S+)", query, re.MULTILINE)]
        path = target
    return found, has_choice


def spellings(path):
    """A path as packages may name it: /lib and /usr/lib are one folder, and so are /bin and /usr/bin."""
    if re.match("/usr" + _MERGED, path):
        return [path, path[len("/usr"):]]
    return [path, "/usr" + path] if re.match(_MERGED, path) else [path]


def packages_that_hold(paths):
    """For each path the packages that hold it."""
    holders = collections.defaultdict(set)
    asked = sorted({spelling for path in paths for spelling in spellings(path)})
    for begin in range(0, len(asked), 1000):
        # It exits with 1 where it does not find one of them.
        for line in run(["dpkg-query", "--search", *asked[begin:begin + 1000]]).stdout.splitlines():
            names, _, path = line.rpartition(": ")
            if not names.startswith(("diversion by", "local diversion")):
                holders[path] |= {name.split(":")[0] for name in names.split(", ")}
    return {path: set().union(*(holders[spelling] for spelling in spellings(path))) for path in paths}


def missing(needs, there):
    """A line for each of `needs` that no package in `there` holds."""
    chains = {need.path: chain(need.path) for need in needs if need.path}
    holders = packages_that_hold({path for paths, _ in chains.values() for path in paths})
    lines = []
    for need in needs:
        if not need.path:
            lines.append(f"{need.name}: not on this machine, so its package is not known; needed by {need.reader}")
            continue
        paths, has_choice = chains[need.path]
        held = [holders[path] for path in paths if holders[path]]
        if not held:
            lines.append(f"{need.path}: belongs to no package; needed by {need.reader}")
        # The first that any package holds decides: of libx.so -> libx.so.1 it is the package that brings libx.so.
        elif not any(names & there for names in (held if has_choice else held[:1])):
            names = ", ".join(sorted(held[0]))
            lines.append(f"{need.path}: belongs to {names}, which setup.sh does not bring; needed by {need.reader}")
    return lines
