"""How a refusal travels."""

from http import HTTPStatus

import pytest
from rdzv_protocol import errors
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import ProtocolError, from_code
from rdzv_protocol.messages import ErrorReply

ALL = [ProtocolError, *ProtocolError.__subclasses__()]


def test_every_error_has_a_code_of_its_own():
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.code)
def test_every_error_arrives_as_what_it_was(error):
    sent = ErrorReply(code=error.code, message="what is wrong")
    reply = decode(ErrorReply, encode(sent))
    arrived = from_code(reply.code, reply.message)
    assert type(arrived) is error
    assert str(arrived) == "what is wrong"


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.code)
def test_every_status_is_one_that_http_knows(error):
    assert HTTPStatus(error.status) >= HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("error", ALL[1:], ids=lambda error: error.code)
def test_the_table_in_the_docstring_is_right(error):
    (line,) = (line for line in errors.__doc__.splitlines() if f" {error.__name__} " in line)
    assert line.split()[2:4] == [error.code, str(error.status)]


def test_a_newer_servers_code_is_an_error_all_the_same():
    error = from_code("from_the_future", "what is wrong")
    assert type(error) is ProtocolError
    assert str(error) == "what is wrong"


def test_who_leads_travels_with_the_refusal():
    sent = ErrorReply(code="not_leader", message="b leads", leader="b:29400", leadership=41)
    reply = decode(ErrorReply, encode(sent))
    error = from_code(reply.code, reply.message, reply.leader, reply.leadership)
    assert isinstance(error, errors.NotLeader)
    assert (error.leader, error.leadership) == ("b:29400", 41)
