"""tools/check_packages.py: what it reads out of scripts, outputs and packages, on planted cases.

Argument: tools/check_packages.py.
"""

import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[1])))

import check_packages  # noqa: E402
from packages import built, debian, shell_commands  # noqa: E402

# (what, script, the programs that it starts). As arguments only `yes` and `git` are programs.
SCRIPTS = [
    ("one a line", "ls -l\ngit status # rm x\n# cp a b", ["ls", "git"]),
    ("operators", "a && b || c; d | e & f |& g", list("abcdefg")),
    ("blank lines and continuations", "\n\n  a \\\n  b\n\tc", ["a", "c"]),
    ("assignments", "x=1 y=$(a) b\nz+=(c $(d))\nlist=(\n  one\n  two  # three\n)\ne", ["a", "b", "d", "e"]),
    ("substitutions", 'a "$(b "$(c)")" `d` ${x:-$(e)} <(f) >(g) $((1 + 2)) \'$(h)\' "\\$(i)"', list("abcdefg")),
    ("conditions", "if a; then b; elif ! c; then d; else e; fi", list("abcde")),
    ("loops", "for x in git $(a); do b; done\nwhile c; do d; done\nuntil e; do f; done", list("abcdef")),
    ("arithmetic", "for ((i = 0; i < 3; ++i)); do a; done\n((i > 2)) && b $((2 * (3 + 4)))\nc", list("abc")),
    ("tests", "[[ $(a) == b && -n c || d =~ ^(e|f)$ ]] || g\n[ h = i ]", ["a", "g"]),
    ("tests with brackets in their patterns", "if [[ ! $x =~ [^,[:space:]] ]]; then a; fi\n[[ $x == [[y]]z\n  ]] && b\n[[ d ]]; c", ["a", "b", "c"]),
    ("cases", 'case $(a) in\n  b | "c)") d ;;\n  (e) f ;&\n  *)\n    g\n    ;;\nesac\nh', list("adfgh")),
    ("a case in a substitution", "x=$(case y in y) a ;; z) b ;; esac)\nc", list("abc")),
    ("functions", "a() {\n  b\n}\nfunction c { d; }\na git; c", ["b", "d", "git"]),
    ("subshells and groups", "(a; b) | { c; d; }", list("abcd")),
    ("here-documents", "a <<'END' | b\nc $(d)\nEND\ne <<-X\n\tf\n\tX\ng <<<h", list("abeg")),
    ("redirections", "a >b 2>&1 <c &>d 2>>e\n>f g", ["a", "g"]),
    ("quotes", "a 'b; c' \"d | e\" f\\;g\n\"h\" i\nj'k' l", ["a", "h", "jk"]),
    ("starters", "exec yes\ntimeout 5 git x\nenv A=1 yes\nsudo no", ["yes", "timeout", "git", "env", "yes", "sudo"]),
    ("scripts in quotes", "bash -c 'a && exec git' yes\ntrap 'b' EXIT", ["bash", "yes", "a", "git", "b"]),
    ("expansions that run their arguments", '"$tool" git "yes"\n"$@"', ["git"]),
    ("paths", "./a\n/bin/b c\n$d/e", ["./a", "/bin/b"]),
    ("builtins", "cd x; echo git; read y; local z=1; printf %s; source a; . b", []),
]


def plant(folder, path, text):
    whole = os.path.join(folder, path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with open(whole, "w", encoding="utf-8") as opened:
        opened.write(text)
    return whole


class ShellCommands(unittest.TestCase):
    def test_names(self):
        for what, script, expected in SCRIPTS:
            with self.subTest(what):
                found = shell_commands.programs_of(script, lambda word: word in ("yes", "git"))
                self.assertEqual(sorted(name for _, name in found), sorted(expected))

    def test_lines(self):
        found = shell_commands.programs_of("a\n\nb | c \\\n  d\nx=$(\n  e\n)", lambda word: False, first_line=10)
        self.assertEqual(found, [(10, "a"), (12, "b"), (12, "c"), (15, "e")])


class Packages(unittest.TestCase):
    def test_texts(self):
        setup = "x=1\npackages=(\n  g++\n  git\n)\nfiles=(\n  a\n)\n"
        self.assertEqual(debian.packages_of(setup), ["g++", "git"])
        with self.assertRaisesRegex(debian.Problem, "no list"):
            debian.packages_of("packages=()")
        said = "Reading...\nInst libc6 (2.36 Debian:12 [amd64])\nInst libx:i386 (1)\nConf libc6 (2.36)\nInst g++ (4:12)\n"
        self.assertEqual(debian.installed_by(said), {"libc6", "libx", "g++"})

    def test_spellings(self):
        self.assertEqual(debian.spellings("/usr/lib/x/y.so"), ["/usr/lib/x/y.so", "/lib/x/y.so"])
        self.assertEqual(debian.spellings("/bin/sh"), ["/bin/sh", "/usr/bin/sh"])
        self.assertEqual(debian.spellings("/usr/include/a.h"), ["/usr/include/a.h"])

    def test_chain(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.realpath(folder)
            end = plant(folder, "deep/libx.so.1.2", "")
            os.symlink("libx.so.1.2", f"{folder}/deep/libx.so.1")
            os.symlink("deep", f"{folder}/link")
            os.symlink("link/libx.so.1", f"{folder}/libx.so")
            self.assertEqual(debian.chain(f"{folder}/libx.so"), ([f"{folder}/libx.so", f"{folder}/deep/libx.so.1", end], False))
        paths, has_choice = debian.chain("/usr/bin/awk")
        self.assertTrue(has_choice)
        self.assertIn("/usr/bin/mawk", paths)

    def test_who_holds(self):
        library = "/usr/lib/x86_64-linux-gnu/libc.so.6"
        held = debian.packages_that_hold({library, library[len("/usr"):], "/usr/bin/bash", "/no/such/file"})
        self.assertEqual(held, {library: {"libc6"}, library[len("/usr"):]: {"libc6"}, "/usr/bin/bash": {"bash"},
                                "/no/such/file": set()})

    def test_missing(self):
        with tempfile.NamedTemporaryFile() as own:
            needs = [debian.Need("bash", "/bin/bash", "a.sh:1"), debian.Need("awk", "/usr/bin/awk", "b.sh:2"),
                     debian.Need("/usr/include/math.h", "/usr/include/math.h", "c.d"),
                     debian.Need("nothing", "", "d.sh:4"), debian.Need(own.name, own.name, "e.d")]
            # awk is an alternative: any of those that there are will do.
            self.assertEqual(debian.missing(needs, {"bash", "mawk"}), [
                "/usr/include/math.h: belongs to libc6-dev, which setup.sh does not bring; needed by c.d",
                "nothing: not on this machine, so its package is not known; needed by d.sh:4",
                f"{own.name}: belongs to no package; needed by e.d",
            ])
            self.assertIn("/usr/bin/awk: ", debian.missing(needs[1:2], {"bash"})[0])


class Built(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.root = f"{self.folder}/tree"
        self.base = f"{self.folder}/base"
        self.output_path = f"{self.base}/execroot/weft/bazel-out"
        os.makedirs(self.output_path)
        plant(self.root, "mesh/layout.cc", "")

    def test_headers(self):
        plant(self.folder, "eigen/Core", "")
        os.makedirs(f"{self.base}/external/sys_eigen")
        os.symlink(f"{self.folder}/eigen", f"{self.base}/external/sys_eigen/include")
        with self.assertRaisesRegex(debian.Problem, "build first"):
            built.headers(self.output_path, self.root)
        plant(self.output_path, "k8-opt/bin/mesh/layout.d",
              "layout.o: \\\n mesh/layout.cc mesh/layout.h /usr/include/math.h \\\n external/sys_eigen/include/Core \\\n"
              f" bazel-out/k8-opt/bin/a.pb.h {self.base}/generated.h\n")
        plant(self.output_path, "k8-opt/bin/mesh/gone.d", "gone.o: mesh/gone.cc /usr/include/gone.h\n")
        reader = "k8-opt/bin/mesh/layout.d"
        self.assertEqual(built.headers(self.output_path, self.root), [
            debian.Need("/usr/include/math.h", "/usr/include/math.h", reader),
            debian.Need("external/sys_eigen/include/Core", f"{self.base}/external/sys_eigen/include/Core", reader)])

    def test_libraries(self):
        with self.assertRaisesRegex(debian.Problem, "build first"):
            built.loaded_libraries(self.output_path)
        plant(self.output_path, "k8-opt/bin/tool-2.params", "-o\ntool\n-lm\n-lweft_has_none\n-lm\n")
        shutil.copy("/bin/true", f"{self.output_path}/k8-opt/bin/tool")
        (need,) = built.loaded_libraries(self.output_path)
        self.assertEqual((need.name, os.path.basename(need.path), need.reader), ("libc.so.6", "libc.so.6", "k8-opt/bin/tool"))
        math, none = built.linked_libraries(self.output_path)
        self.assertEqual((math.name, os.path.basename(math.path), none.name, none.path),
                         ("-lm", "libm.so", "-lweft_has_none", ""))

    def test_entries(self):
        said = (" 0x1 (NEEDED)  Shared library: [libx.so.1]\n 0x1 (NEEDED)  Shared library: [liby.so]\n"
                " 0x1d (RUNPATH)  Library runpath: [/opt/a:/opt/b]\n")
        self.assertEqual(built.entries(said), (["libx.so.1", "liby.so"], ["/opt/a", "/opt/b"]))


class Starts(unittest.TestCase):
    def test_interpreters(self):
        self.assertEqual(check_packages.interpreters("#!/usr/bin/env python3\n"), ["/usr/bin/env", "python3"])
        self.assertEqual(check_packages.interpreters("#!/bin/bash -e\n#!/bin/x"), ["/bin/bash"])
        self.assertEqual(check_packages.interpreters("\n#!/bin/bash"), [])

    def test_started_in(self):
        rule = 'genrule(\n    name = "x",\n    cmd = """\n        a=$<\n        $(location @b//:b) $$a | awk > $@\n    """,\n)\n'
        self.assertEqual(check_packages.started_in("x/BUILD", rule), [(5, "awk")])
        self.assertEqual(check_packages.started_in("x/defs.bzl", '    cmd = "sed \\"s/a/b/\\" $< > $@" % x,'), [(1, "sed")])
        self.assertEqual(check_packages.started_in("x/y.sh", "cat\n"), [(1, "cat")])
        self.assertEqual(check_packages.started_in(".ci/run", "#!/bin/bash\ncat\n"), [(1, "/bin/bash"), (2, "cat")])
        self.assertEqual(check_packages.started_in("x/y.md", "cat\n"), [])

    def test_script_programs(self):
        files = {"a.sh": "tools/own.sh\nweft_has_none\nbash x\n", "b.sh": "bash y\nsudo z\n"}
        self.assertEqual(check_packages.script_programs(files), [debian.Need("weft_has_none", "", "a.sh:2"),
                                                                debian.Need("bash", "/bin/bash", "a.sh:3")])
        # What a script reads by "." has functions for it, and for those that name it.
        files = {"ci/steps.sh": "weft_step() {\n  true\n}\n", "ci/run.sh": ". ci/steps.sh\nweft_step\n(true) 2>&1\n",
                 "ci/with.sh": '. ci/steps.sh "$@" || exit 1\nweft_step\n',
                 "by_name.sh": "steps=$PWD/ci/steps.sh\n. \"$steps\"\nweft_step\n", "other.sh": "weft_step\n"}
        self.assertEqual(check_packages.script_programs(files), [debian.Need("weft_step", "", "other.sh:1")])
        # So does one that lies beside it.
        files = {"a/steps.sh": "weft_step() { true; }\n", "b/steps.sh": "",
                 "a/run.sh": '. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"\nweft_step\n',
                 "b/run.sh": 'source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"\nweft_step\n'}
        dirname = debian.Need("dirname", check_packages.on_path("dirname"), "a/run.sh:1")
        self.assertEqual(check_packages.script_programs(files), [dirname, debian.Need("weft_step", "", "b/run.sh:2")])

    def test_undeclared_starts(self):
        files = {path: "std::system(x); subprocess.run(y)" for path in check_packages.SOURCES_THAT_START}
        self.assertEqual(check_packages.undeclared_starts(files), [])
        files["new.cc"] = "if (popen(command, mode)) {"
        files["system.h"] = "// The system (popen and the like) is not asked."
        files["tests/runtime/store/child.cc"] = "nothing"
        self.assertEqual([line.split(";")[0] for line in check_packages.undeclared_starts(files)],
                         ["new.cc: starts programs", "tests/runtime/store/child.cc: starts no program"])

    def test_imported_modules(self):
        files = {"a/b.py": "import json, yaml.nodes\nfrom a import c\nimport d\nfrom weft_has_none import e\n", "d.py": ""}
        needs = check_packages.imported_modules(files)
        self.assertEqual([(need.name, need.reader) for need in needs],
                         [("Python's weft_has_none", "a/b.py:4"), ("Python's yaml", "a/b.py:1")])
        self.assertEqual(needs[0].path, "")
        self.assertEqual(debian.missing(needs[1:], {"python3-yaml"}), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
