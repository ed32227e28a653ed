"""Reasons why the workers' command cannot run."""

MODULE_AND_PROGRAM = "-m is for Python modules, --no-python for other programs: give one of them"
LOCAL_RANK_OF_A_PROGRAM = "--no-python needs --use-env here: other programs get no --local-rank"


def no_module(name: str, folder: str | None) -> str:
    """`folder`: the working folder, None if it is gone."""
    return f"there is no module {name} {_looked('in sys.path and', folder)}"


def module_is_a_script(name: str) -> str:
    return f"-m {name}: a module's name has no .py: give -m {name.removesuffix('.py')}, or leave -m out"


def no_script(script: str, folder: str | None) -> str:
    return f"there is no script {script} {_looked('in', folder)}"


def no_program(name: str, folder: str | None) -> str:
    return f"there is no program {name} {_looked('in PATH and', folder)}"


def no_program_on_stdin(interpreter: str) -> str:
    """The workers would read an empty program, and the run would succeed without having done anything."""
    return f"standard input is empty, so {interpreter} has no program: name a script, or give one on standard input"


def program_unreachable(name: str, reason: str) -> str:
    return f"cannot access program {name:.200}: {reason}"


def no_python(name: str, folder: str | None) -> str:
    return f"PYTHON_EXEC={name}: there is no such program {_looked('in PATH and', folder)}"


def _looked(places: str, folder: str | None) -> str:
    return (
        "(the working folder no longer exists: cd to an existing one)"
        if folder is None
        else f"(looked {places} {folder})"
    )


def script_is_python(script: str) -> str:
    return f"{script}: node-agent starts Python itself: leave {script} out, or write --no-python before it"


def no_main(folder: str) -> str:
    return f"{folder} is a folder without a __main__.py: name the script in it"


def script_unreadable(script: str, reason: str) -> str:
    return f"cannot read script {script}: {reason}"


def script_of_a_shell(script: str, needs_shell: bool) -> str:
    """`needs_shell`: whether the script's first line does not name an interpreter."""
    before = "--no-python bash" if needs_shell else "--no-python"
    return f"{script} is a shell script, not Python: give {before} before it"


def script_is_binary(script: str) -> str:
    return f"{script} is a compiled program, not Python: give --no-python before it"


def no_interpreter(program: str, interpreter: str) -> str:
    return f"{program}: its first line names the interpreter {interpreter}, which does not exist"


def no_first_line(program: str) -> str:
    return (
        f"{program} is a text file whose first line names no interpreter, so it cannot start: begin it with a line "
        f"such as #!/bin/sh, or write sh {program}"
    )


def windows_line_ends(program: str, interpreter: str) -> str:
    """`interpreter`: the last word of the first line."""
    return (
        f"{program}: its first line ends with a carriage return, as on Windows, which becomes part of {interpreter}: "
        f"remove the carriage returns (sed -i 's/\\r$//' {program})"
    )


def byte_order_mark(program: str) -> str:
    return f"{program} begins with a byte order mark, so its first line names no interpreter: save it without the mark"


def program_is_a_folder(name: str) -> str:
    return f"{name} is a folder: name a program"


def program_not_in_path(name: str) -> str:
    return f"{name} is not in PATH: write ./{name}"


def program_not_executable(name: str) -> str:
    return f"{name} is not executable: chmod +x {name}, or leave --no-python out for a Python script"


def preload_without_python(source: str) -> str:
    return f"{source} works only for Python scripts, not with --no-python"


def preload_without_script(source: str, given: str) -> str:
    return (
        f"{source}: workers start in a Python process that already runs, which cannot take {given}: name a script, or "
        "leave --preload out"
    )
