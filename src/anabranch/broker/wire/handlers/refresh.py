"""AUTH_RESPONSE: new credentials for an open connection, whose producers and consumers stay attached."""

from __future__ import annotations

from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import AuthenticationError
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.authentication import Shown
from anabranch.security.refusals import RefusedCredentialsError

AUTH_RESPONSE = "AUTH_RESPONSE"


async def refresh(connection: ServerConnection, command: pb.CommandAuthResponse) -> None:
    gate = connection.services.gate
    if gate.is_open or connection.is_peer or connection.is_refreshing:
        return
    response = command.response
    shown = Shown(response.auth_method_name, response.auth_data, connection.address, connection.certificate)
    connection.is_refreshing = True
    try:
        connection.caller = await gate.renew(shown, AUTH_RESPONSE, connection.caller)
    finally:
        connection.is_refreshing = False
    connection.services.revocation.check(connection)


def refuse(connection: ServerConnection, command: pb.CommandAuthResponse, error: Exception) -> None:
    """Disconnect a client whose new credentials are wrong."""
    text = str(error if isinstance(error, AuthenticationError) else RefusedCredentialsError(""))
    connection.send(pb.CommandError(request_id=NO_ID, error=pb.AuthenticationError, message=text))
    connection.hang_up()


HANDLERS = {pb.CommandAuthResponse: CommandHandler(refresh, refuse)}
