# SPDX-License-Identifier: Apache-2.0
"""Finds which C file calls which through pointers to functions, for tests/check-circles.

A *slot* holds a pointer to a function: it is a member of a struct, a parameter or a variable. The
slots are found by reading headers and files; there is no list of them. A file *hands in* a
function where it stores it in a slot, gives it as an argument or returns it; it *calls through* the
slot where it calls the function in the slot. One slot can flow into another, as when a parameter is
stored in a member. A function that is handed to a place without a known slot counts for every slot
with the same parameters; if there is none, it is a gap.
"""
import collections, re

NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.S | re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|->|==|!=|<=|>=|&&|\|\||\S")


class Words(dict):
    """token -> whether it is a word. Each token is examined once."""

    def __missing__(self, token):
        self[token] = re.fullmatch(r"[A-Za-z_]\w*", token) is not None
        return self[token]


WORD = Words()
STATEMENTS = {"return", "else", "case", "goto", "sizeof", "if", "while", "for", "switch", "do"}
DROPPED = {"const", "struct", "volatile", "restrict", "static", "extern", "inline", "unsigned", "register"}
OPEN, CLOSE = {"(": 1, "[": 1, "{": 1}, {")": 1, "]": 1, "}": 1}


def tokens(text):
    """Tokens of C without comments and directives. A string is one token, but no word."""
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    return TOKEN.findall(NO_CODE.sub(lambda m: ' 0 ' if m.group()[0] in "\"'" else " ", text))


def partner(t, i):
    """The index of the bracket that closes the one at i."""
    depth = 0
    for j in range(i, len(t)):
        depth += (t[j] in OPEN) - (t[j] in CLOSE)
        if depth == 0:
            return j
    return len(t) - 1


def opener(t, i):
    """(index of the bracket that opens around i, number of commas between), or (-1, 0)."""
    depth = commas = 0
    for j in range(i - 1, -1, -1):
        if t[j] in CLOSE:
            depth += 1
        elif t[j] in OPEN:
            if depth == 0:
                return j, commas
            depth -= 1
        elif depth == 0:
            commas += t[j] == ","
            if t[j] == ";" or (t[j] == "}" and not depth):
                return -1, 0
    return -1, 0


def nested(t, at):
    """Whether the { at `at` opens an element of other braces: {{, or {[X] = { or {.x = {"""
    if t[at - 1] == "=":
        at = opener(t, at - 2)[0] if t[at - 2] == "]" else at - 3 if t[at - 3] == "." else 0
    return t[at - 1] in ("{", ",")


def split(t):
    """Token lists between the commas of the outermost level."""
    parts, depth = [[]], 0
    for x in t:
        depth += (x in OPEN) - (x in CLOSE)
        if x == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(x)
    return [p for p in parts if p]


def pointer_name(t, typedefs):
    """The name that a declaration gives to a pointer to a function, or None."""
    for i in range(len(t) - 2):
        if t[i] == "(" and t[i + 1] == "*":
            end = partner(t, i)
            words = [x for x in t[i + 2:end] if WORD[x] and x not in DROPPED]
            return words[0] if words and end + 1 < len(t) and t[end + 1] == "(" else None
    words = [x for x in t if WORD[x] and x not in DROPPED]
    return words[-1] if len(words) == 2 and words[0] in typedefs and "(" not in t else None


def kind(t):
    """A parameter's type: its words without the name."""
    if "(" in t:
        return "function"
    t = t[:t.index("[")] + ["*"] if "[" in t else t
    t = [x for x in t if x not in DROPPED]
    return " ".join(t[:-1] if len([x for x in t if WORD[x]]) > 1 else t)


def kinds(t):
    return tuple(kind(p) for p in split(t))


def kinds_of_pointer(t, typedefs):
    for i in range(len(t) - 2):
        if t[i] == "(" and t[i + 1] == "*":
            end = partner(t, i) + 1
            return kinds(t[end + 1:partner(t, end)])
    return next((typedefs[x] for x in t if x in typedefs), ())


class File:
    """What one file of C declares: typedefs of functions, structs, functions."""

    def __init__(self, path, text):
        self.path, self.t = path, tokens(text)
        self.typedefs, self.structs, self.functions, self.bodies = {}, {}, {}, []
        self.places = collections.defaultdict(list)  # token -> its indexes; filled at the first use
        self.scan()

    def places_of(self, token):
        if not self.places:
            for i, x in enumerate(self.t):
                self.places[x].append(i)
        return self.places.get(token, ())

    def declarations(self):
        """(begin, end) of each piece of text between the ; and } of the outermost level."""
        begin = i = 0
        while i < len(self.t):
            if self.t[i] in OPEN:
                i = partner(self.t, i)
                if self.t[i] == "}" and self.is_function(begin, i):
                    yield begin, i + 1
                    begin = i + 1
            elif self.t[i] == ";":
                yield begin, i
                begin = i + 1
            i += 1

    def is_function(self, begin, end):
        head = self.t[begin:end]
        head = head[:head.index("{")] if "{" in head else head
        return "=" not in head and ")" in head

    def scan(self):
        for begin, end in self.declarations():
            d = self.t[begin:end]
            if "{" in d and "=" not in d[:d.index("{")] and ")" in d[:d.index("{")]:
                self.function(begin, d, d.index("{"))
            elif "{" in d and {"struct", "union"} & set(d[:d.index("{")]) and "=" not in d[:d.index("{")]:
                self.struct(d, d.index("{"))
            elif d[:1] == ["typedef"] and "(" in d:
                self.typedef(d)
            elif "(" in d and "=" not in d:
                self.function(begin, d, None)

    def known_as(self, struct):
        """The key of a struct. A struct of a .c file gets the file's name, because another file may
        have a struct of the same name."""
        return struct if self.path.endswith(".h") else f"{self.path}:{struct}"

    def typedef(self, d):
        at = d.index("(")
        if d[at + 1:at + 2] == ["*"]:
            end = partner(d, at) + 1
            self.typedefs[d[end - 2]] = kinds(d[end + 1:partner(d, end)])
        else:
            self.typedefs[d[at - 1]] = kinds(d[at + 1:partner(d, at)])

    def struct(self, d, at):
        end = partner(d, at)
        behind = d[end + 1:]
        behind = behind[:behind.index("=")] if "=" in behind else behind
        names = [x for x in d[:at] + behind if WORD[x] and x not in DROPPED | {"typedef", "union"}]
        members, one = [], []
        for x in d[at + 1:end]:
            if x == ";" and sum((y in OPEN) - (y in CLOSE) for y in one) == 0:
                members.append(one)
                one = []
            else:
                one.append(x)
        for name in names:
            self.structs[self.known_as(name)] = members

    def function(self, begin, d, body):
        heads = [i for i, x in enumerate(d[:body]) if x == "(" and i and WORD[d[i - 1]] and d[i - 1] != "__attribute__"]
        if not heads:
            return
        at = heads[0]
        params = split(d[at + 1:partner(d, at)])
        if body is not None or d[at - 1] not in self.functions:
            self.functions[d[at - 1]] = (params, "static" in d[:at], body is not None)
        if body is not None:
            self.bodies.append((d[at - 1], begin + body, begin + len(d)))


class Pointers:
    """edges[caller] = {(file that handed a function in, name of the slot)}; gaps:
    functions handed to an unknown place."""

    def __init__(self, texts):
        self.files = {path: File(path, text) for path, text in texts.items()}
        self.typedefs = {k: v for f in self.files.values() for k, v in f.typedefs.items()}
        self.members = collections.defaultdict(dict)  # name -> struct -> kinds
        # naming: word -> members whose declaration has it
        self.structs, self.naming = {}, collections.defaultdict(set)
        self.homes = {}  # function that is not static -> its file
        self.learn()
        self.handed = collections.defaultdict(set)  # slot -> files
        self.called = collections.defaultdict(set)
        self.flows = collections.defaultdict(set)  # slot -> slots
        self.gaps = []
        for f in self.files.values():
            self.read(f)
        self.edges = self.meet()

    def learn(self):
        for f in self.files.values():
            self.structs.update(f.structs)
            for owner, members in f.structs.items():
                for m in members:
                    name = pointer_name(m, self.typedefs)
                    if name:
                        self.members[name][owner] = kinds_of_pointer(m, self.typedefs)
            for name, (params, static, body) in f.functions.items():
                if not static and (body or name not in self.homes):
                    self.homes[name] = f
        for i, m in enumerate(m for members in self.structs.values() for m in members):
            for word in m:
                self.naming[word].add(i)

    # ---- functions by name -----------------------------------------------------------------------
    def home(self, f, name):
        if name in f.functions and (f.functions[name][1] or name not in self.homes):
            return f
        return self.homes.get(name)

    def params(self, f, name):
        home = self.home(f, name)
        return home.functions[name][0] if home else None

    def slots_of_params(self, f, name):
        """{name of a parameter: its slot}, for the parameters that are pointers to functions"""
        home, found = self.home(f, name), {}
        for i, p in enumerate(home.functions[name][0] if home else []):
            param = pointer_name(p, self.typedefs)
            if param:
                found[param] = self.slot_of_param(f, name, i)
        return found

    def slot_of_param(self, f, name, i):
        home = self.home(f, name)
        return ("argument", home.path if home.functions[name][1] else "", name, i)

    # ---- members ---------------------------------------------------------------------------------
    def owners(self, f, i):
        """The structs whose member the token i may name, judged by the text before the . or ->"""
        name, j = f.t[i], i - 2
        owners = self.seen(f, name)
        if len(owners) > 1:
            while j > 0 and f.t[j] in CLOSE:
                j = opener(f.t, j)[0] - 1
            near = {o for o in owners if self.declared(f, o.split(":")[-1], f.t[j])}
            owners = near or owners
        return {("member", o, name) for o in owners}

    def seen(self, f, name):
        """The structs with a member of that name whose declaration the file can see."""
        return {o for o in self.members.get(name, ()) if ":" not in o or o.startswith(f.path + ":")}

    def declared(self, f, owner, name):
        """Whether the file or any struct declares `name` with the type `owner`, or `name` is that
        type."""
        return owner == name or self.has(f, owner, name) or not self.naming[owner].isdisjoint(self.naming[name])

    @staticmethod
    def has(f, owner, name):
        for i in f.places_of(owner):
            rest = [y for y in f.t[i + 1:i + 5] if y not in ("*", "const")]
            if rest[:1] == [name]:
                return True
        return False

    def of_function(self, f, name, slots):
        """The slots that have the function's parameters, or all slots if none has."""
        mine = tuple(kind(p) for p in self.params(f, name) or [])
        same = {s for s in slots if self.members[s[2]][s[1]] == mine}
        return same or slots

    def by_kind(self, f, name):
        mine = tuple(kind(p) for p in self.params(f, name) or [])
        return {("member", o, m) for m in self.members for o in self.seen(f, m) if self.members[m][o] == mine}

    # ---- calls in a file -------------------------------------------------------------------------
    def read(self, f):
        inside = {i: (name, a) for name, a, b in f.bodies for i in range(a, b)}
        local = {name: self.variables(f, name, a, b) for name, a, b in f.bodies}
        slots = {x for found in local.values() for x, slot in found.items() if slot}
        for i, x in enumerate(f.t[:-1]):
            if x not in slots and x not in self.members and x not in self.homes and x not in f.functions:
                continue
            mine = local.get(inside.get(i, ("", 0))[0], {})
            calls = f.t[i + 1] == "(" or f.t[i + 1] == ")" and f.t[i + 2:i + 3] == ["("]
            if f.t[i - 1] in (".", "->"):
                if x in self.members:
                    self.at_member(f, i, calls, mine)
            elif x in mine and mine[x]:
                if calls:
                    self.called[mine[x]].add(f.path)
                else:
                    self.flow({mine[x]}, self.places(f, i, mine))
            elif f.t[i + 1] != "(" and x not in mine and self.home(f, x):
                self.at_function(f, i, inside, mine)

    def variables(self, f, name, a, b):
        """{local variable of a function: its slot, or None if it holds no pointer to a function}"""
        found = {}
        for p in self.params(f, name) or []:
            words = [x for x in p if WORD[x]]
            found[words[-1] if words else ""] = None
        found.update(self.slots_of_params(f, name))
        for i in range(a, b - 2):
            word = f.t[i + 1]
            star = f.t[i] == "*" and WORD[f.t[i - 1]] and f.t[i - 2] in (";", "{", "}", "(", "const", ",")
            plain = WORD[f.t[i]] and f.t[i] not in STATEMENTS
            if (star or plain) and WORD[word] and f.t[i + 2] in ("=", ";", ",", "["):
                known = (f.t[i - 1] if star else f.t[i]) in self.typedefs
                found.setdefault(word, ("variable", f.path, name, word) if known else None)
            elif f.t[i] == "(" and word == "*" and f.t[i + 3:i + 5] == [")", "("] and WORD[f.t[i + 2]]:
                found.setdefault(f.t[i + 2], ("variable", f.path, name, f.t[i + 2]))
        return found

    def at_member(self, f, i, calls, mine):
        slots = self.owners(f, i)
        if calls:
            for s in slots:
                self.called[s].add(f.path)
        elif f.t[i + 1] not in ("=", ".", "->", "["):
            self.flow(slots, self.places(f, i, mine))

    def at_function(self, f, i, inside, mine):
        if i not in inside and not self.in_initialiser(f.t, i):
            return
        name, t = f.t[i], f.t
        if t[i - 1] in ("==", "!=") or t[i + 1] in ("==", "!=", ":"):
            return
        slots = self.places(f, i, mine)
        members = {s for s in slots if s[0] == "member"}
        slots = (slots - members) | self.of_function(f, name, members)
        if not slots and not self.to_outside(f, i):
            slots = self.by_kind(f, name)
            if not slots:
                self.gaps.append((f.path, name))
        for s in slots:
            self.handed[s].add(f.path)

    @staticmethod
    def in_initialiser(t, i):
        """Whether token i, outside functions, follows a = or is in braces that follow one."""
        at, _ = opener(t, i)
        while at > 0:
            i, (at, _) = at, opener(t, at)
        return t[i - 1] == "="

    def to_outside(self, f, i):
        """Whether token i is an argument of a macro or of a function that the tree does not
        define."""
        at, _ = opener(f.t, i)
        return at > 0 and f.t[at] == "(" and WORD[f.t[at - 1]] and f.t[at - 1] not in STATEMENTS \
            and not self.home(f, f.t[at - 1])

    def places(self, f, i, mine):
        """The slots that the value at token i is stored in."""
        t, begin = f.t, self.begin(f.t, i)
        if t[begin - 1] == "&":
            begin -= 1
        if t[begin - 1] == "=":
            return self.assigned(f, begin - 2, mine)
        at, commas = opener(t, begin)
        if at < 0:
            return set()
        if t[at] == "(" and WORD[t[at - 1]]:
            return self.argument(f, at - 1, commas)
        is_body = any(at == a for _, a, _ in f.bodies)
        return self.initialised(f, at, commas) if t[at] == "{" and not is_body else set()

    @staticmethod
    def begin(t, i):
        """The first token of the chain a->b[c].d that ends at i; in a ?: the first token of its
        condition"""
        while i > 1 and t[i - 1] in (".", "->"):
            i -= 2
            while i > 0 and t[i] in CLOSE:
                i = opener(t, i)[0] - (1 if WORD[t[opener(t, i)[0] - 1]] else 0)
        j = i
        while j > 0 and t[j - 1] not in ("=", ",", ";", "{", "}", "(", "["):
            j -= 1
            if t[j] == "?":
                while j > 0 and t[j - 1] not in ("=", ",", ";", "{", "(", "return"):
                    j -= 1
                return j
        return i

    def assigned(self, f, i, mine):
        while i > 0 and f.t[i] == "]":
            i = opener(f.t, i)[0] - 1
        if f.t[i] in ("{", ","):
            return self.initialised(f, *opener(f.t, i + 1))
        if f.t[i - 1] in (".", "->") and f.t[i] in self.members:
            return self.owners(f, i) if f.t[i - 2] not in ("{", ",") else self.designated(f, i)
        return {mine[f.t[i]]} if mine.get(f.t[i]) else set()

    def designated(self, f, i):
        """The slots of a {.name = ...}: of the struct named before the braces, if it has that
        member."""
        name, head = f.t[i], self.head(f.t, opener(f.t, i - 1)[0])
        owners = self.seen(f, name)
        named = {o for o in owners if o.split(":")[-1] in head}
        return {("member", o, name) for o in named or owners}

    def argument(self, f, at, i):
        name = f.t[at]
        home = self.home(f, name) if f.t[at - 1] not in (".", "->") else None
        params = home.functions[name][0] if home else []
        known = i < len(params) and pointer_name(params[i], self.typedefs)
        return {self.slot_of_param(f, name, i)} if known else set()

    def initialised(self, f, at, i):
        """The slots of a value in { } by its position: the member of the struct named before the
        braces. A table of functions counts as one variable of the file."""
        head = self.head(f.t, at)
        known = [k for x in head for k in (f"{f.path}:{x}", x) if k in self.structs]
        for owner in reversed(known):
            members = self.structs[owner]
            name = pointer_name(members[i], self.typedefs) if i < len(members) else None
            if name:
                return {("member", owner, name)}
        table = [x for x in head if x in self.typedefs] or head[-1:] == ["="] and "(" in head and head[head.index("(") + 1] == "*"
        return {("variable", f.path, "", "a table")} if table else set()

    @staticmethod
    def head(t, at):
        """The declaration: the tokens before the outermost braces around index `at`."""
        while at > 0 and nested(t, at):
            at = opener(t, at)[0]
        begin = at = max(at, 0)
        while begin > 0 and t[begin - 1] not in (";", "{", "}"):
            begin -= 1
        return t[begin:at]

    # ---- what follows ----------------------------------------------------------------------------
    def flow(self, sources, targets):
        for s in sources:
            self.flows[s] |= targets - {s}

    def meet(self):
        edges = collections.defaultdict(set)
        for slot, files in self.handed.items():
            reached, left = set(), [slot]
            while left:
                one = left.pop()
                if one not in reached:
                    reached.add(one)
                    left += self.flows[one]
            for one in reached:
                for caller in self.called[one]:
                    edges[caller] |= {(file, one[2 if one[0] == "argument" else -1]) for file in files - {caller}}
        return edges
