"""Group norms stay in NHWC."""

from __future__ import annotations

from tvm import relax

from tests.passes.graphs import weights
from tests.passes.layout.nhwc import conv, low, same

R = relax.op


def test_group_norms_read_and_write_images_as_they_are() -> None:
    def norm(x: relax.Expr, channels: int) -> relax.Expr:
        scale, shift = (weights(channels, dtype="float32") for _ in range(2))
        return R.nn.group_norm(x, scale, shift, num_groups=4, channel_axis=1, axes=[2, 3], epsilon=1e-5)

    def net(x: relax.Expr) -> relax.Expr:
        y = conv(low(R.nn.silu(norm(R.astype(x, "float32"), 8))), 16, 8, padding=1)
        tokens = R.reshape(R.permute_dims(norm(y, 16), [0, 2, 3, 1]), (2, 30, 16))
        return low(R.add(tokens, R.reshape(R.permute_dims(conv(x, 16, 8, 1), [0, 2, 3, 1]), (2, 30, 16))))

    found = same(net, x=(2, 8, 5, 6))
    assert found[:4] == ["permute_dims", "group_norm", "nn.silu", "astype"]
