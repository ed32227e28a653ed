"""Refusals are sent as a code and one line, and arrive as the same error."""

from http import HTTPStatus

from rdzv_protocol.codec import decode, encode
from rdzv_protocol.errors import NotLeader, ProtocolError, ServerUnavailable, from_code
from rdzv_protocol.messages import ErrorReply

from tests.support.cases import case

ALL = [ProtocolError, *ProtocolError.__subclasses__(), *ServerUnavailable.__subclasses__()]


def test_every_error_has_a_code_of_its_own():
    assert len({error.code for error in ALL}) == len(ALL)


def test_every_error_arrives_as_what_it_was_with_a_status_that_http_knows():
    for error in ALL:
        with case(error.__name__):
            reply = decode(ErrorReply, encode(ErrorReply(code=error.code, message="what is wrong")))
            arrived = from_code(reply.code, reply.message)
            assert (type(arrived), str(arrived)) == (error, "what is wrong")
            assert HTTPStatus(error.status) >= HTTPStatus.BAD_REQUEST


def test_an_unknown_error_code_of_a_newer_server_is_an_error():
    error = from_code("from_the_future", "what is wrong")
    assert (type(error), str(error)) == (ProtocolError, "what is wrong")


def test_the_refusal_names_the_leader():
    sent = ErrorReply(code="not_leader", message="b leads", leader="b:29400", leadership=41)
    reply = decode(ErrorReply, encode(sent))
    error = from_code(reply.code, reply.message, reply.leader, reply.leadership)
    assert isinstance(error, NotLeader)
    assert (error.leader, error.leadership) == ("b:29400", 41)
