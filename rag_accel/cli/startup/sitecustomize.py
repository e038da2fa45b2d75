"""The switch for acceleration in an interpreter that starts: it waits for a framework's import.

Python imports a module of this name before a program's first line; ``rag-accel run`` puts this one
first. Interpreters that the program starts, such as a server's workers, inherit it.

Only modules that Python has loaded or built in are imported here. So an interpreter that uses no
framework starts as fast as without this, and a program's own modules win over those of this
package, as they would without it. Interpreters of other environments and other
versions run this file too, so it needs no more than Python 3.6.
"""

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: set by ``rag-accel run``: the id of the program's process, then modules to wait for
VARIABLE = "_RAG_ACCEL_RUN"
#: set to 0 by a user who wants no line about what was accelerated
SUMMARY = "RAG_ACCEL_SUMMARY"


class FrameworkImports:
    """A finder that switches acceleration on as soon as a framework was imported.

    It finds nothing itself: the other finders give the spec and the loader of a framework's module,
    unchanged but for the switch after the loader's next run of that module. The finder leaves once
    all its modules were imported.
    """

    def __init__(self, names: "list[str]", is_program: bool) -> None:
        self._names = tuple(names)
        self._waiting = set(names)
        self._is_program = is_program

    def install(self) -> None:
        """Wait for imports from now on; frameworks imported already are switched on at once."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        for name in self._names:
            if name in sys.modules:
                self._came(name)
        if self._is_program:
            atexit.register(self.report, os.getpid())

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec of the other finders; None for modules that are not waited for."""
        if name not in self._waiting:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._follow(name, spec.loader)
                return spec
        return None

    def _follow(self, name: str, loader: "Any") -> None:
        """Make the loader's next run of a module end with the switch."""
        run = getattr(loader, "exec_module", None)
        if run is None or isinstance(loader, type):  # classes load other modules meanwhile
            return

        def exec_module(module: "Any") -> None:
            if module.__name__ != name:
                run(module)
                return
            try:  # noqa: SIM105 - contextlib is not loaded
                del loader.exec_module
            except AttributeError:  # it was found twice, and the other one has done so
                pass
            run(module)
            self._came(name)

        try:  # noqa: SIM105 - contextlib is not loaded
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            pass  # it runs plainly, which the report tells

    def _came(self, name: str) -> None:
        try:
            self._waiting.remove(name)
        except KeyError:  # another thread, or a second loader of the same module
            return
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
        _switch_on(name)

    def report(self, process: int) -> None:
        """Say so if nothing was accelerated in the program's process, which ends."""
        if os.getpid() != process or len(self._waiting) < len(self._names):
            return
        if os.environ.get(SUMMARY, "1").strip().lower() in ("0", "off", "false", "no"):
            return
        loaded = [name for name in self._names if name in sys.modules]
        why = (
            f"{loaded[0]} was loaded in a way that cannot be followed"
            if loaded
            else f"this process never imported {' or '.join(self._names)}"
        )
        _say(f"nothing was accelerated: {why}")


def _switch_on(name: str) -> None:
    is_program = _process() == str(os.getpid())
    try:
        _load_ours()
        from rag_accel.cli.automatic import switch_on

        switch_on(name, is_program=is_program)
    except (Exception, SystemExit) as error:
        # An environment without rag_accel never asked for it.
        if not (isinstance(error, ImportError) and error.name == "rag_accel"):
            said = " ".join(str(error).split()) or type(error).__name__
            _say(f"the program runs plainly: {said}")


def _load_ours() -> None:
    """Import the package of this file, not another one of its name that the program has.

    Only from this interpreter's module path: other environments may not have it.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    name, home = os.path.basename(package), os.path.realpath(os.path.dirname(package))
    if name in sys.modules or all(os.path.realpath(place) != home for place in sys.path):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None, "a file of Python's has a loader"
    assert spec.loader is not None, "a file of Python's has a loader"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _say(what: str) -> None:
    if sys.__stderr__ is not None:
        try:
            sys.__stderr__.write(f"rag-accel: {what}\n")
            sys.__stderr__.flush()
        except (OSError, ValueError):
            pass  # the program has closed it


def _leave() -> None:
    """Let the program see the modules that it would see without us, another ``sitecustomize`` too.

    The variables stay for the interpreters that it starts.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours  # there is no other, and the import system wants one


def _process() -> str:
    """Return the id of the program's process, which tells it apart from those that it starts."""
    return os.environ.get(VARIABLE, "").partition(":")[0]


def _install() -> None:
    names = os.environ.get(VARIABLE, "").partition(":")[2]
    if names:
        FrameworkImports(names.split(","), _process() == str(os.getpid())).install()


# First, so that it stands also if another ``sitecustomize`` raises.
_install()
_leave()
