"""Commands of `rdzvctl config`: each shows or changes the contexts in the configuration file."""

import os

from rdzv_protocol.tls_files import SYSTEM

from rdzvctl import contexts, words
from rdzvctl.contexts import FIELDS, Contexts
from rdzvctl.errors import BadInput, Refused
from rdzvctl.session import Session
from rdzvctl.views import tables


def _file(session: Session) -> Contexts:
    if not (path := contexts.path_of(session.environment)):
        raise BadInput(words.contexts.NO_HOME)
    return contexts.load(path)


def get_contexts(session: Session) -> None:
    file, out = _file(session), session.out
    if out.is_json:
        return out.json({"file": file.path, "current": file.current, "contexts": file.contexts})
    if not file.contexts:
        return out.line(words.contexts.no_contexts(file.path))
    rows = [
        ("*" if name == file.current else "", name, each["endpoint"], each.get("token_file", "-"),
         each.get("tls_ca", "-"))
        for name, each in file.contexts.items()
    ]  # fmt: skip
    return out.table(tables.Table(("CURRENT", "NAME", "ENDPOINT", "TOKEN FILE", "TLS CA"), rows))


def current_context(session: Session) -> None:
    file = _file(session)
    if not file.current:
        raise Refused(words.contexts.none_is_current(file.path))
    return session.out.json({"current": file.current}) if session.out.is_json else session.out.line(file.current)


def use_context(session: Session) -> None:
    file, name = _file(session), session.given["name"]
    file.get(name)
    _write(session, file._replace(current=name), words.contexts.is_current(name))


def set_context(session: Session) -> None:
    file, name = _file(session), session.given["name"]
    if not name.isprintable() or not name:
        raise BadInput(words.contexts.bad_name(name))
    given = {key: str(session.given[key]) for key in FIELDS if key in session.given}
    for key in given.keys() - {"endpoint"}:
        if given[key] != SYSTEM:
            given[key] = os.path.abspath(os.path.expanduser(given[key]))  # so that it works from any folder
    fields = {**file.contexts.get(name, {}), **given}
    if "endpoint" not in fields:
        raise BadInput(words.contexts.where_is_server(name))
    contexts.check(name, fields)
    known = {**file.contexts, name: fields}
    _write(session, file._replace(contexts=known, current=file.current or name), words.contexts.is_set(name))


def delete_context(session: Session) -> None:
    file, name = _file(session), session.given["name"]
    file.get(name)
    left = {each: fields for each, fields in file.contexts.items() if each != name}
    current = "" if file.current == name else file.current
    _write(session, file._replace(contexts=left, current=current), words.contexts.is_deleted(name))


def _write(session: Session, file: Contexts, done: str) -> None:
    file.write()
    if session.out.is_json:
        return session.out.json({"file": file.path, "current": file.current, "contexts": file.contexts})
    return session.out.line(words.contexts.written(file.path, done, comments_lost=file.has_comments))
