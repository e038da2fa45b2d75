"""Test what is read from Python source without importing it."""

from __future__ import annotations

import textwrap

import pytest

from rag_accel.sample.chunking import Section
from rag_accel.sample.source_files import read_sections

LONG = " ".join(["These words explain it at some length."] * 14)


def _read(code: str) -> dict[str, Section]:
    sections = read_sections(textwrap.dedent(code).encode(), "pkg.mod", "pkg/mod.py")
    assert len({section.id for section in sections}) == len(sections)
    return {section.id: section for section in sections}


def test_short_docstrings_are_told_in_their_module() -> None:
    sections = _read(
        '''
        """Work with files and folders on every machine."""
        def copy(source, target): "Copy a file."
        class File:
            """Hold an open file."""
            def read(self, size=-1): "Read some bytes of it"
        '''.replace('"Copy', '"""Copy').replace('file."\n', 'file."""\n')
    )
    assert set(sections) == {"pkg.mod"}
    assert sections["pkg.mod"].paragraphs == (
        "Work with files and folders on every machine.",
        "- pkg.mod.copy(source, target): Copy a file.",
        "- pkg.mod.File: Hold an open file.",
        "- File.read(size): Read some bytes of it.",
    )


def test_a_long_docstring_is_a_section_of_its_own() -> None:
    sections = _read(
        f'''
        """A module of ours."""
        class File:
            """{LONG}"""
            def read(self, size, *, encoding=None, **options):
                """Read it. {LONG}"""
        '''
    )
    read = sections["pkg.mod.File.read"]
    assert read.heading == "pkg.mod.File.read(size, *, encoding, **options)"
    assert (read.title, read.qualname, read.source) == (
        "pkg.mod.File.read",
        "pkg.mod.File.read",
        "pkg/mod.py",
    )
    assert "pkg.mod.File" in sections


def test_private_and_nested_definitions_are_left_out() -> None:
    sections = _read(
        f'''
        """A module with one public function in it, and some more that nobody should see."""
        def _hidden(): """{LONG}"""
        class _Hidden:
            """{LONG}"""
        def shown():
            """{LONG}"""
            def inner(): """{LONG}"""
        '''
    )
    assert set(sections) == {"pkg.mod", "pkg.mod.shown"}


def test_definitions_below_if_and_try_are_found_once() -> None:
    sections = _read(
        f'''
        if True:
            def one(): """The first. {LONG}"""
        else:
            def one(): """The second. {LONG}"""
        try:
            def two(): """{LONG}"""
        except ImportError:
            pass
        '''
    )
    assert set(sections) == {"pkg.mod.one", "pkg.mod.two"}
    assert sections["pkg.mod.one"].paragraphs[0].startswith("The first")


def test_a_long_signature_is_shortened() -> None:
    names = ", ".join(f"parameter_{number}" for number in range(9))
    sections = _read(f'def f({names}):\n    """{LONG}"""')
    assert sections["pkg.mod.f"].heading == "pkg.mod.f(parameter_0, ...)"


def test_reading_runs_nothing() -> None:
    assert _read(f'"""{LONG}"""\nraise SystemExit') != {}


def test_old_escapes_are_read_without_a_warning() -> None:
    assert _read(f'"""{LONG}"""\npattern = "\\d"') != {}


@pytest.mark.parametrize("code", [b'"""a"""\nprint "python 2"', b'"""\xff\xfe"""', b'"""\0"""'])
def test_what_is_not_python_raises(code: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        read_sections(code, "pkg.mod", "pkg/mod.py")


def test_a_file_without_docstrings_has_no_sections() -> None:
    assert _read("x = 1\n") == {}


def test_definitions_below_hundreds_of_choices_are_found() -> None:
    choices = "".join(f"elif a == {number}:\n    pass\n" for number in range(80))
    last = f'else:\n    def last():\n        """{LONG}"""\n'
    assert set(_read(f"if a:\n    pass\n{choices}{last}")) == {"pkg.mod.last"}


def test_lines_below_blank_ones_keep_their_indentation() -> None:
    text = "\n    \n\n        Further in than what follows, by four blanks.\n\n    The rest of it."
    (section,) = _read(f'def f():\n    """{text} {LONG}"""').values()
    assert section.paragraphs[0] == "Further in than what follows, by four blanks."
    assert section.paragraphs[1].startswith("The rest of it.")


def test_names_that_are_too_long_to_repeat_are_left_out() -> None:
    long = "a" * 400
    sections = _read(
        f'''
        class Short:
            """{LONG}"""
            def {long}(self): """{LONG}"""
            def f(self, {long}): """{LONG}"""
        class {long}:
            """{LONG}"""
            def g(self): """{LONG}"""
        '''
    )
    assert set(sections) == {"pkg.mod.Short", "pkg.mod.Short.f"}
    assert len(sections["pkg.mod.Short.f"].heading) < 100
