"""What the gateway tells of how it foretells the lengths of answers."""

from __future__ import annotations

import asyncio

import pytest
from e2e.stand import engine, stand


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_lengths_are_learnt_from_usage_and_told(stream: bool) -> None:
    async def main() -> None:
        async with (
            stand(engine(0), engine(1), cache={"mode": "off"}) as made,
            made.admin() as admin,
        ):
            for number in range(12):
                answer = await made.ask(f"Q {number} [[answer 20]]", stream=stream)
                assert answer.status_code == 200
            (found,) = made.gateway.parts.state()["lengths"].values()
            assert found["answers"] == 12
            assert found["within_2"] > 0.7
            page = (await admin.get("/metrics")).text
            assert 'tierway_length_within_2{by="predictor",model="' in page
            assert 'tierway_length_log_error{by="mean",model="' in page

    asyncio.run(main())
