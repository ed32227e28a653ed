"""Scripts of the pages: they share one global scope, in which a second declaration of a name stops a whole script."""

import re
from collections import Counter
from pathlib import Path

import rdzv_server

SCRIPTS = sorted((Path(rdzv_server.__file__).parent / "web" / "static").glob("*.js"))
DECLARATION = re.compile(r"^(?:const|let|var|class|(?:async )?function\*?) (\w+)", re.MULTILINE)


def test_no_name_is_declared_by_two_scripts():
    names = Counter(name for script in SCRIPTS for name in DECLARATION.findall(script.read_text()))
    assert len(names) > 100
    assert [name for name, times in names.items() if times > 1] == []
