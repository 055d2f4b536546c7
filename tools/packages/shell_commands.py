"""Which programs a shell script starts, by reading it.

This is a reader of bash's grammar as far as commands go: quotes, comments, here-documents, substitutions in and out of
quotes, functions, `case`, `[[ ]]`, arithmetic. It runs nothing. It follows a command that starts another (`timeout 5 git`,
`bash -c 'ip link'`, a function of the script that runs its arguments) by looking at the arguments.
"""

import collections
import re

# A word of a script: `text` is None where it holds an expansion ("$x"), `quoted` tells whether any of it was in quotes.
Word = collections.namedtuple("Word", ["text", "quoted"])
# One simple command: the line where it starts, and its words after assignments and redirections.
Command = collections.namedtuple("Command", ["line", "words"])

_BUILTINS = frozenset(
    """. : [ alias bg bind break builtin caller cd command compgen complete compopt continue coproc declare dirs disown
    echo enable eval exec exit export false fc fg for getopts hash help history jobs kill let local logout
    mapfile popd printf pushd pwd read readarray readonly return select set shift shopt source suspend test times trap
    true type typeset ulimit umask unalias unset wait""".split())
_GOES_ON = frozenset(["if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "fi", "done", "}"])
# Their arguments may name a program.
_STARTERS = frozenset(
    """bash chroot command env eval exec find flock ip mpirun nice nohup nsenter runuser setsid sh stdbuf sudo timeout
    trap unshare valgrind xargs""".split())
# Of those, the ones with an argument that is a script.
_SCRIPT_STARTERS = frozenset(["bash", "sh", "eval", "trap"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
_WORD_ENDS = frozenset(" \t\n;&|()<>")


class _Reader:
    def __init__(self, text, first_line):
        self.text = text
        self.at = 0
        self.first_line = first_line
        self.commands = []
        self.functions = set()
        self.waiting_documents = []  # (delimiter, whether tabs before it are dropped)

    def line(self):
        return self.first_line + self.text.count("\n", 0, self.at)

    def ahead(self, *texts):
        return any(self.text.startswith(text, self.at) for text in texts)

    def done(self):
        return self.at >= len(self.text)

    def skip_blanks(self):
        while not self.done():
            if self.ahead(" ", "\t"):
                self.at += 1
            elif self.ahead("\\\n"):
                self.at += 2
            elif self.ahead("#"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_past(self, end):
        found = self.text.find(end, self.at)
        self.at = len(self.text) if found < 0 else found + len(end)

    def skip_documents(self):
        for delimiter, drop_tabs in self.waiting_documents:
            while not self.done():
                begin = self.at
                self.skip_past("\n")
                line = self.text[begin:self.at].rstrip("\n")
                if (line.lstrip("\t") if drop_tabs else line) == delimiter:
                    break
        self.waiting_documents = []

    def read_list(self, end):
        """Reads commands up to `end`: "" for the end of the text, ")" or ";;" (which `esac` stands for too)."""
        words = []
        line = self.line()
        while True:
            self.skip_blanks()
            if self.done():
                break
            if self.ahead("\n", ";", "&", "|", ")") and not self.ahead("&>"):
                self.finish(line, words)
                words = []
                if self.separator(end):
                    return
                continue
            numbered = re.match(r"\d+(?=[<>])", self.text[self.at:])  # of a group, too: "( ... ) 2>&1"
            if numbered:
                self.at += numbered.end()
            if self.ahead("<", ">", "&>"):
                self.redirection()
            elif self.ahead("(("):
                self.arithmetic()
            elif self.ahead("("):
                self.at += 1
                self.read_list(")")
            else:
                if not words:
                    line = self.line()
                if not words and self.keyword():
                    continue
                if not words and end == ";;" and re.match(r"esac(?![^\s;&|)])", self.text[self.at:]):
                    return
                word = self.word(starts_command=not words)
                if word is not None:
                    words.append(word)
        self.finish(line, words)

    def separator(self, end):
        """Steps over what ends a command; returns whether it ends the list too."""
        if self.ahead(";;", ";&"):
            self.at += 2
            if self.ahead("&"):
                self.at += 1
            return end == ";;"
        closes = self.ahead(")")
        newline = self.ahead("\n")
        self.at += 1
        if newline:
            self.skip_documents()
        return closes and end == ")"

    def keyword(self):
        """Steps over a reserved word at the start of a command, and what belongs to it; False if there is none."""
        found = re.match(r"(\[\[|case|[a-z]+|[!{}])(?=[\s;&|)(]|$)", self.text[self.at:])
        if not found:
            return False
        if found[1] == "[[":
            self.at += 2
            # As a word of its own it ends the test: in a pattern ("[[:space:]]") it does not.
            while not self.done() and not (self.ahead("]]") and self.text[self.at - 1] in " \t\n"):
                if self.ahead('"', "'", "$", "`", "\\"):
                    self.word(starts_command=False)
                else:
                    self.at += 1
            self.at += 2
        elif found[1] == "case":
            self.at += 4
            self.case()
        elif found[1] == "function":
            named = re.match(r"function\s+([^\s(){}]+)(\s*\(\s*\))?", self.text[self.at:])
            self.functions.add(named[1])
            self.at += len(named[0])
        elif found[1] in _GOES_ON:
            self.at += len(found[1])
        else:
            return False
        return True

    def case(self):
        self.skip_blanks()
        self.word(starts_command=False)
        self.skip_past("in")
        while not self.done():
            while self.ahead("\n"):
                self.at += 1
            self.skip_blanks()
            if self.ahead("\n"):
                continue
            if re.match(r"esac(?![^\s;&|)])", self.text[self.at:]):
                self.at += 4
                return
            # Patterns: quotes may hold a ")".
            while not self.done() and not self.ahead(")"):
                if self.ahead('"', "'", "$", "`", "\\"):
                    self.word(starts_command=False)
                else:
                    self.at += 1
            self.at += 1
            self.read_list(";;")

    def redirection(self):
        if self.ahead("<(", ">("):
            self.at += 2
            self.read_list(")")
            return
        operator = re.match(r"<<<|<<-?|&>>?|[<>]+[&|]?", self.text[self.at:])[0]
        self.at += len(operator)
        self.skip_blanks()
        if operator in ("<<", "<<-"):
            begin = self.at
            self.word(starts_command=False)
            delimiter = re.sub(r"['\"\\]", "", self.text[begin:self.at])
            self.waiting_documents.append((delimiter, operator == "<<-"))
        elif not self.done() and self.text[self.at] not in _WORD_ENDS - {"<", ">"}:
            if self.ahead("<(", ">("):
                self.redirection()
            else:
                self.word(starts_command=False)

    def word(self, starts_command):
        """Reads a word. None for what is no word of a command: an assignment, the head of a function."""
        begin = self.at
        text = ""
        quoted = False
        while not self.done() and self.text[self.at] not in _WORD_ENDS:
            piece, in_quotes = self.piece()
            quoted = quoted or in_quotes
            text = None if text is None or piece is None else text + piece
        raw = self.text[begin:self.at]
        if self.at == begin:  # never without a step
            self.at += 1
            return None
        if _ASSIGNMENT.match(raw):
            if raw.endswith("=") and self.ahead("("):
                self.at += 1
                self.array()
                return None
            if starts_command:
                return None
        if starts_command and text and re.match(r"[ \t]*\([ \t]*\)", self.text[self.at:]):
            self.functions.add(text)
            self.skip_past(")")
            return None
        return Word(text, quoted)

    def array(self):
        while not self.done():
            while self.ahead("\n"):
                self.at += 1
            self.skip_blanks()
            if self.ahead(")"):
                self.at += 1
                return
            if self.ahead("<(", ">("):
                self.redirection()
            elif not self.ahead("\n"):
                self.word(starts_command=False)

    def piece(self):
        """Reads the next piece of a word: its text, None for an expansion, and whether it is in quotes."""
        if self.ahead("\\"):
            self.at += 2
            return self.text[self.at - 1:self.at].replace("\n", ""), False
        if self.ahead("'", "$'"):
            begin = self.text.index("'", self.at) + 1
            self.at = begin
            self.skip_past("'")
            return self.text[begin:self.at - 1], True
        if self.ahead('"', '$"'):
            self.at = self.text.index('"', self.at) + 1
            return self.double_quoted(), True
        if self.ahead("$", "`"):
            return self.expansion(), False
        self.at += 1
        return self.text[self.at - 1], False

    def double_quoted(self):
        text = ""
        while not self.done() and not self.ahead('"'):
            if self.ahead("\\"):
                piece = self.text[self.at + 1:self.at + 2]
                self.at += 2
            elif self.ahead("$", "`"):
                piece = self.expansion()
            else:
                piece = self.text[self.at]
                self.at += 1
            text = None if text is None or piece is None else text + piece
        self.at += 1
        return text

    def expansion(self):
        """Steps over $x, ${x}, $(x), $((x)) or `x` and reads the commands in it. None, or "$" where it is only that."""
        if self.ahead("$(("):
            self.at += 1
            self.arithmetic()
        elif self.ahead("$("):
            self.at += 2
            self.read_list(")")
        elif self.ahead("${"):
            self.at += 2
            while not self.done() and not self.ahead("}"):
                self.piece()
            self.at += 1
        elif self.ahead("`"):
            begin = self.at + 1
            self.at = begin
            line = self.line()
            self.skip_past("`")
            self.nested(self.text[begin:self.at - 1], line)
        else:
            name = re.match(r"\$(\w+|[@*#?$!-])?", self.text[self.at:])[0]
            self.at += len(name)
            return "$" if name == "$" else None
        return None

    def arithmetic(self):
        """Steps over ((x)); commands within it are not read."""
        depth = 0
        while not self.done():
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
            if depth == 0:
                return

    def nested(self, text, line):
        reader = _Reader(text, line)
        reader.read_list("")
        self.commands += reader.commands
        self.functions |= reader.functions

    def finish(self, line, words):
        if not words:
            return
        self.commands.append(Command(line, words))
        if words[0].text in _SCRIPT_STARTERS:
            for word in words[1:]:
                if word.quoted and word.text:
                    self.nested(word.text, line)


def functions_of(text):
    """The names of the functions that a shell script defines."""
    reader = _Reader(text, 1)
    reader.read_list("")
    return reader.functions


def programs_of(text, is_program, first_line=1, functions=frozenset()):
    """The programs that a shell script may start, as (line, name) in order.

    text:       the script.
    is_program: whether a word is the name of a program; asked for arguments of commands that start others.
    functions:  those of the scripts that this one reads (". steps.sh").
    Names with a "/" are as the script has them. What only an expansion gives ("$tool") is not found.
    """
    reader = _Reader(text, first_line)
    reader.read_list("")
    reader.functions |= functions
    found = []
    for line, words in reader.commands:
        name = words[0].text
        known = name in _BUILTINS or name in reader.functions
        if name and not known:
            found.append((line, name))
        # A command that the script makes up, or a function of the script, may run its arguments.
        if name is None or name in reader.functions or name in _STARTERS:
            for word in words[1:]:
                if word.text and not word.quoted and word.text not in reader.functions and is_program(word.text):
                    found.append((line, word.text))
    return found
