"""A process with jax in it: neither changes the other's results, and we never import it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

OURS = """
import torch
function = torch.compile(lambda x, n: (x * 2 + 1, n * 3, x.to(torch.float64)), backend="tpu",
                         fullgraph=True, options={"fallback": "error"})
def check_ours():
    x = torch.tensor([1e300, 1 / 3, -0.0], dtype=torch.float64)
    n = torch.tensor([2**40 + 1, -5], dtype=torch.int64)
    doubled, tripled, same = function(x, n)
    assert torch.equal(doubled, x * 2 + 1) and doubled.dtype is torch.float64
    assert torch.equal(tripled, n * 3) and tripled.dtype is torch.int64
    assert torch.equal(same, x)
"""

JAX = """
def check_jax():
    import jax
    import jax.numpy as jnp
    assert jax.config.jax_enable_x64 is False
    assert jnp.arange(3).dtype == jnp.int32
    assert jnp.asarray(1.5).dtype == jnp.float32
    assert float(jax.jit(lambda a: a * 2)(jnp.float32(1.5))) == 3.0
    with jax.enable_x64(True):
        assert jnp.asarray(2**40).dtype == jnp.int64
"""


def run(body: str) -> None:
    """Run `body` in a new process after the definitions of both checks."""
    program = OURS + JAX + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "order",
    [
        "check_ours(); check_jax(); check_ours(); check_jax()",
        "check_jax(); check_ours(); check_jax(); check_ours()",
        "import jax; check_ours(); check_jax()",
    ],
)
def test_64_bit_data_is_right_on_both_sides(order: str) -> None:
    run(order)


def test_jaxs_own_flag_changes_nothing_for_us() -> None:
    run("import jax; jax.config.update('jax_enable_x64', True); check_ours()")
    run("check_ours(); import jax; jax.config.update('jax_enable_x64', False); check_ours()")


def test_we_do_not_import_jax_where_it_is_installed() -> None:
    run(
        """
        import sys
        check_ours()
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        compiled = torch.compile(model, backend="tpu", options={"fallback": "error"})
        compiled(torch.randn(4, 3)).sum().backward()
        assert "jax" not in sys.modules
        """
    )
