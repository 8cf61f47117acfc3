"""How consumers join and leave groups, in the change queue. Does not know how assignments reach them."""

from __future__ import annotations

from anabranch.controller.decide import groups
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import Membership, Push
from anabranch.controller.topic.leadership import Happened, Leadership, Notify
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.errors import ConflictError, NotAllowedError
from anabranch.metadata.records import SubscriptionRecord


class Registrations:
    """The memberships in all groups of the topic that `lead` leads."""

    def __init__(
        self, lead: Leadership, subscriptions: Subscriptions, members: Members, notify: Notify
    ) -> None:
        self._lead = lead
        self._subscriptions = subscriptions
        self._members = members
        self._notify = notify

    async def register(self, sub: str, name: str, push: Push, request: RegistrationRequest) -> Membership:
        """Make the consumer a member, or give it back what it held."""
        if request.kind == "QUEUE":
            raise NotAllowedError("queue consumers read every segment and do not register")
        if not name:
            raise ConflictError("a consumer that registers needs a name")
        self._members.holds.check_free(sub, name, request)
        await self._subscriptions.ensure(sub, request.kind, request.start, request.opened_in)

        def joined(found: SubscriptionRecord) -> SubscriptionRecord:
            return groups.join(found, self._lead.layout, name, self._subscriptions.load_by_segment, request)

        record = self._subscriptions.records[sub]
        if joined(record) is not record:
            saved = await self._subscriptions.save(sub, joined)
            if saved.consumers != record.consumers:
                self._notify(Happened.MEMBERS_CHANGED)
        token = self._members.join(sub, name, push, request)
        record = self._subscriptions.records[sub]
        assignment = groups.assignment(record, self._lead.layout, self._lead.name, name)
        return Membership(token, sub, name, assignment, self._lead.record.incarnation)

    async def leave(self, token: int) -> None:
        """Remove the consumer that this token identifies, if the token still holds a name."""
        hold = self._members.holds.of(token)
        if hold is None:
            return

        def left(found: SubscriptionRecord) -> SubscriptionRecord:
            return groups.leave(found, self._lead.layout, hold.name, self._subscriptions.load_by_segment)

        await self._subscriptions.save(hold.subscription, left)
        self._members.gone(token)
        self._notify(Happened.MEMBERS_CHANGED)

    async def evict(self, token: int) -> None:
        """Remove a consumer whose grace period has ended, unless it is back."""
        hold = self._members.holds.of(token)
        if hold is not None and not hold.connected:
            await self.leave(token)
