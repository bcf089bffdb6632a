"""Models of Transformers with Entwine, two ranks under torchrun: logits, tokens, gradients and
training as in one process and as with Transformers' own tensor parallelism.  Skipped where
transformers is not installed."""
import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MISSING = [name for name in ("torch", "transformers", "accelerate")
           if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: NO "
                                f"TRANSFORMERS TEST WAS RUN")
MODELS = ("Llama", "Qwen2", "Qwen3", "Mistral")


def test_example():
    """Under torchrun itself."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", EXAMPLES / "torch_transformers.py"]
    # Not killed by Python: ended by SIGTERM, torchrun takes its ranks along.
    ran = subprocess.run(["timeout", "-k", "5", "400", *command], capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=420)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert said.count("tokens are the same") == 2, said
    assert said.count("on 2 ranks: GEMM + AllReduce in 2 o_proj, 2 down_proj;") == 1, said


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """By all checks below on two ranks, which end at the first that fails."""
    ran = run_program(__file__, folder=tmp_path_factory.mktemp("ranks"), ranks=2, limit=400)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return (ran.stdout + ran.stderr).splitlines()


@pytest.mark.parametrize("name", MODELS)
def test_logits_tokens_and_gradients(said, name):
    for way in ("theirs", "enable", "parallelize"):
        assert said.count(f"{name}, {way}: as in one process") == 2


@pytest.mark.parametrize("what", [
    "bfloat16: as in one process", "tied embeddings: as in one process",
    "a head tied to a whole embedding: as in one process", "experts: as in one process",
    "a copy has weights of its own", "a whole weight in a split layer is refused",
    "no tokens beyond the vocabulary",
    "loss curves are equal", "a write to a DTensor is seen", "saved and loaded again",
    "a plan by names: as in one process", "layers that cannot are left alone",
    "gate and up in one call, unless somebody looks on", "refused with a fix"])
def test_the_rest(said, what):
    assert said.count(what) == 2


# ---- On the ranks ----------------------------------------------------------------------------

def say(line):
    # Whole lines, whatever the others print: gloo (torch 2.8) prints its own in pieces.
    os.write(1, f"\n{line}\n".encode())


class Lines(list):
    """What a logger said."""

    def __init__(self, name):
        super().__init__()
        import logging
        handler = logging.Handler()
        handler.emit = lambda record: self.append((record.levelname, record.getMessage()))
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel("INFO")


def tiny(name, **options):
    import torch
    import transformers
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "pad_token_id": 0, **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # biases too, which start at zero
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.05)
    return model


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def results(model, tokens):
    """Logits, tokens and whole gradients by parameter."""
    import torch
    with torch.no_grad():
        logits = [model(tokens).logits for _ in range(3)][-1]  # the weights are packed by then
        new = model.generate(tokens, max_new_tokens=8, do_sample=False)
    model.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    return logits, new, {name: whole(parameter.grad)
                         for name, parameter in model.named_parameters()}


def check_equal(got, want, bound=1e-4):
    """Within the bound of the largest value, of each tensor."""
    import torch
    (logits, tokens, grads), (right_logits, right_tokens, right_grads) = got, want
    assert torch.equal(tokens, right_tokens)
    assert grads.keys() == right_grads.keys()
    for name, one, right in [("logits", logits, right_logits), *(
            (name, grads[name], right_grads[name]) for name in grads)]:
        far, largest = (one - right).abs().max().item(), right.abs().max().item()
        assert largest > 0 and far <= bound * largest + 1e-8, f"{name}: off by {far} of {largest}"


def collectives_of(model, tokens):
    """Entwine's, and those of torch.distributed, in one forward pass."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from entwine._world import find_world

    class Count(TorchDispatchMode):
        entwines = theirs = 0

        def __torch_dispatch__(self, operator, types, arguments=(), kwargs=None):
            # In a world of its own a rank multiplies columns.
            Count.entwines += (operator is torch.ops.entwine.gemm_ar.default
                               and find_world(arguments[2]).size > 1)
            Count.theirs += operator.namespace in ("c10d", "_c10d_functional") and (
                "allreduce" in operator.name() or "all_reduce" in operator.name())
            return operator(*arguments, **(kwargs or {}))

    with torch.no_grad(), Count():
        model(tokens)
    return Count.entwines, Count.theirs


def gathers_of(model, tokens):
    """Of embedding and head by Entwine, in inference and with gradients."""
    import torch
    from entwine import _torch_parallel
    original, counts = _torch_parallel.parts_of_all, []

    def counting(*arguments):
        counts[-1] += 1
        return original(*arguments)

    _torch_parallel.parts_of_all = counting
    try:
        for wanted in (False, True):
            counts.append(0)
            with torch.set_grad_enabled(wanted):
                model(tokens)
    finally:
        _torch_parallel.parts_of_all = original
    return tuple(counts)


def check_models(client, load, tokens):
    import entwine.transformers
    for name in MODELS:
        right = results(tiny(name), tokens)
        folder = client.saved(tiny(name))
        entwine.transformers.mixin.apply_tensor_parallelism = entwine.transformers._apply
        models = {"theirs": load(name, folder)}
        entwine.transformers.enable()
        models["enable"] = load(name, folder)
        models["parallelize"] = entwine.transformers.parallelize(tiny(name))
        got = {way: results(model, tokens) for way, model in models.items()}
        for way, model in models.items():
            check_equal(got[way], right)
            check_equal(got[way], got["theirs"])
            # With somebody looking on, the embedding is Transformers' own.
            assert collectives_of(model, tokens) == ((0, 5) if way == "theirs" else (4, 1))
            assert gathers_of(model, tokens) == ((0, 0) if way == "theirs" else (2, 0))
            say(f"{name}, {way}: as in one process")


def check_kinds(tokens):
    import torch
    import entwine.transformers
    parallelize = entwine.transformers.parallelize
    check_equal(results(parallelize(tiny("Llama", tie_word_embeddings=True)), tokens),
                results(tiny("Llama", tie_word_embeddings=True), tokens))
    say("tied embeddings: as in one process")
    model = tiny("Llama", tie_word_embeddings=True)
    model.tp_plan = {layer: style for layer, style in model.tp_plan.items()
                     if not layer.endswith("embed_tokens")}
    check_equal(results(parallelize(model), tokens),
                results(tiny("Llama", tie_word_embeddings=True), tokens))
    say("a head tied to a whole embedding: as in one process")
    for style in ("packed_colwise", "colwise"):  # some plans have this for halves that are fused
        model, right = (tiny("Mixtral", num_local_experts=4) for _ in range(2))
        model.tp_plan = {layer: style if layer.endswith("gate_up_proj") else its
                         for layer, its in model.tp_plan.items()}
        check_equal(results(parallelize(model), tokens), results(right, tokens))
    say("experts: as in one process")
    model = parallelize(tiny("Llama"))
    for number in (-1, 128):
        with torch.no_grad():
            try:
                model(torch.full((1, 4), number))
            except IndexError:
                continue
        raise AssertionError(f"token {number} was accepted")
    say("no tokens beyond the vocabulary")
    # Fewer tokens than before: torch 2.8 confuses split embeddings that differ in dtype alone.
    fewer = tokens[:, 1:]
    wide = [model(fewer).logits for model in (parallelize(tiny("Llama").bfloat16()),
                                              tiny("Llama").bfloat16())]
    assert wide[0].dtype is torch.bfloat16
    assert (wide[0] - wide[1]).abs().max() <= 0.03 * wide[1].abs().max()
    say("bfloat16: as in one process")
    model = tiny("Llama")
    model._tp_plan = model.model._tp_plan = {}
    model.config.base_model_tp_plan = None
    model = parallelize(model)
    check_equal(results(model, tokens), results(tiny("Llama"), tokens))
    assert collectives_of(model, tokens) == (4, 0)
    say("a plan by names: as in one process")


def losses(model, steps=20):
    """Of training on a few sequences; every parameter has a gradient in every step."""
    import torch
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator, curve = torch.Generator().manual_seed(5), []
    for _ in range(steps):
        tokens = torch.randint(128, (4, 12), generator=generator) // 8
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(whole(one.grad).abs().max() > 0 for one in model.parameters())
        optimizer.step()
        curve.append(whole(loss).item())
    return curve


def check_training(client, load, steps=20):
    import entwine.transformers
    folder = client.saved(tiny("Llama"))
    entwine.transformers.mixin.apply_tensor_parallelism = entwine.transformers._apply
    theirs = losses(load("Llama", folder), steps)
    entwine.transformers.enable()
    ours = losses(load("Llama", folder), steps)
    assert ours[-1] < ours[0] - 0.5, ours
    far = max(abs(one - other) for one, other in zip(ours, theirs))
    assert far < 1e-3, (ours, theirs)
    say("loss curves are equal")
    return ours[0], ours[-1], far


def check_writes(tokens):
    """One element changes, which none of those that are compared is: its version must tell."""
    import torch
    import entwine.transformers
    model, right = entwine.transformers.parallelize(tiny("Llama")), tiny("Llama")
    with torch.no_grad():
        for _ in range(3):
            model(tokens)
        for one in (model, right):
            weight = one.model.layers[0].mlp.down_proj.weight
            change = torch.zeros(weight.shape)
            change[7, 3] = change[9, 99] = 50.0
            if hasattr(weight, "device_mesh"):
                change = torch.distributed.tensor.distribute_tensor(
                    change, weight.device_mesh, weight.placements, src_data_rank=None)
            weight.add_(change)
        far = (model(tokens).logits - right(tokens).logits).abs().max().item()
    assert far < 1e-4, far
    say("a write to a DTensor is seen")


def check_whole_weights():
    """In the place of DTensors: all layers of a block agree on whole features, and every rank would
    add its own sum of all of them."""
    import torch
    import entwine.transformers
    for wanted in (False, True):
        model = entwine.transformers.parallelize(tiny("Llama"))
        model.load_state_dict(tiny("Llama").state_dict(), assign=True)
        block = model.model.layers[0].mlp
        for layer in (block.gate_proj, block.down_proj):
            try:
                with torch.set_grad_enabled(wanted):
                    layer(torch.ones(2, layer.in_features))
            except entwine.ArgumentTypeError as error:
                assert "plain tensor of the whole shape" in str(error), error
            else:
                raise AssertionError(f"{layer} ran")
    say("a whole weight in a split layer is refused")


def check_copies(tokens):
    """Also of layers that fall back to Transformers' own forward, as with gradients."""
    import copy
    import torch
    import entwine.transformers
    model, right = entwine.transformers.parallelize(tiny("Llama")), tiny("Llama")
    before = results(model, tokens)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for one in (*other.parameters(), *right.parameters()):
            one.mul_(0.75)
    check_equal(results(other, tokens), results(right, tokens))
    check_equal(results(copy.deepcopy(other), tokens), results(right, tokens))
    check_equal(results(model, tokens), before)
    say("a copy has weights of its own")


@contextlib.contextmanager
def calls_of_gated(tokens):
    """Counts the calls of a model that are of gate, up and the activation together."""
    import torch
    from entwine import _torch_parallel
    original, joined = _torch_parallel.activated_columns, []

    def counting(*arguments):
        y = original(*arguments)
        joined.append(y is not None)
        return y

    def calls_of(model):
        del joined[:]
        with torch.no_grad():
            model(tokens)
        return joined.count(True)

    _torch_parallel.activated_columns = counting
    try:
        yield calls_of
    finally:
        _torch_parallel.activated_columns = original


def check_gated(tokens):
    """One call for gate, up and the activation; but hooks, layers put in the place of theirs, other
    activations and gradients go the usual way."""
    import functools
    import torch
    import entwine.transformers

    def parallel(**options):
        return entwine.transformers.parallelize(tiny("Llama", **options))

    with calls_of_gated(tokens) as calls_of:
        for activation in ("silu", "gelu_pytorch_tanh"):
            model, right = parallel(hidden_act=activation), tiny("Llama", hidden_act=activation)
            assert calls_of(model) == 2
            check_equal(results(model, tokens), results(right, tokens))
        assert calls_of(parallel(hidden_act="relu")) == calls_of(parallel(mlp_bias=True)) == 0
        model, first = parallel(), []
        mlp = model.model.layers[0].mlp
        for part in (mlp.gate_proj, mlp.act_fn):
            hook = part.register_forward_hook(lambda *given: first.append(given[2]))
            assert calls_of(model) == 1 and len(first) == 1
            hook.remove()
            first.clear()
        hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        assert calls_of(model) == 0
        hook.remove()
        assert calls_of(model) == 2
        theirs = mlp.up_proj.forward
        for wrapped in (lambda forward: forward, functools.wraps(theirs)):
            mlp.up_proj.forward = wrapped(lambda x: 2 * theirs(x))
            assert calls_of(model) == 1
            del mlp.up_proj.forward
            mlp.up_proj.forward = theirs
            assert calls_of(model) == 2
        whole, act = type(mlp).forward, mlp.act_fn
        for change, undo in (
                (lambda: setattr(mlp, "act_fn", torch.nn.ReLU()),
                 lambda: setattr(mlp, "act_fn", act)),
                (lambda: setattr(type(mlp), "forward", lambda self, x: whole(self, x)),
                 lambda: setattr(type(mlp), "forward", whole))):
            change()
            assert calls_of(model) < 2
            undo()
            assert calls_of(model) == 2
        model(tokens, labels=tokens).loss.backward()
        with torch.no_grad():
            mlp.up_proj.weight.mul_(2.0)
            right = tiny("Llama")
            right.model.layers[0].mlp.up_proj.weight.mul_(2.0)
            assert (model(tokens).logits - right(tokens).logits).abs().max() < 1e-4
    say("gate and up in one call, unless somebody looks on")


def check_saving(client, load, tokens):
    import torch
    import entwine.transformers
    model = entwine.transformers.parallelize(tiny("Qwen2"))
    with torch.no_grad():
        want = model(tokens).logits
        folder = [client.tempfile.mkdtemp() if torch.distributed.get_rank() == 0 else None]
        torch.distributed.broadcast_object_list(folder)
        model.save_pretrained(folder[0])  # on all ranks, as Transformers wants it
        assert torch.equal(load("Qwen2", folder[0])(tokens).logits, want)
        one = type(model).from_pretrained(folder[0])
        assert (one(tokens).logits - want).abs().max() < 1e-5
    say("saved and loaded again")


def check_refusals(tokens, logged):
    import torch
    import entwine
    import entwine.transformers
    parallelize = entwine.transformers.parallelize

    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return 1 * super().forward(x)

    model = tiny("Llama")
    model.model.layers[1].mlp.down_proj.__class__ = Scaled
    del logged[:]
    model = parallelize(model)
    assert collectives_of(model, tokens)[0] == 3
    if torch.distributed.get_rank() == 0:
        (level, line), = logged
        assert level == "WARNING" and "1 down_proj (is a Scaled, whose forward is" in line
    else:
        assert not logged
    model, right = tiny("Llama"), tiny("Llama")
    for one in (model, right):
        for layer in (one.model.layers[0].self_attn.o_proj, one.model.layers[1].mlp.gate_proj):
            theirs = layer.forward
            layer.forward = lambda x, theirs=theirs: 2 * theirs(x)
    del logged[:]
    check_equal(results(parallelize(model), tokens), results(right, tokens))
    if torch.distributed.get_rank() == 0:
        (level, line), = logged
        assert level == "WARNING" and "1 o_proj, 1 gate_proj (has a forward that was put" in line
    say("layers that cannot are left alone")
    for make, text in ((lambda: model, "already distributed"),
                       (lambda: torch.nn.Linear(2, 2), "expected a model of Transformers"),
                       (lambda: tiny("Llama", num_key_value_heads=1), "num_key_value_heads is 1")):
        try:
            parallelize(make())
        except entwine.EntwineError as error:
            assert text in str(error)
        else:
            raise AssertionError(text)
    say("refused with a fix")


def rank_main():
    import torch
    import torch.distributed as dist
    sys.path.insert(0, str(EXAMPLES))
    import torch_transformers as client
    import transformers
    from transformers.distributed import DistributedConfig
    dist.init_process_group("gloo")
    logged = Lines("entwine")
    tokens = torch.randint(128, (3, 5), generator=torch.Generator().manual_seed(3))

    def load(name, folder):
        return getattr(transformers, f"{name}ForCausalLM").from_pretrained(
            folder, distributed_config=DistributedConfig(tp_plan="auto")).eval()

    check_models(client, load, tokens)
    check_kinds(tokens)
    check_training(client, load)
    check_writes(tokens)
    check_whole_weights()
    check_copies(tokens)
    check_gated(tokens)
    check_saving(client, load, tokens)
    check_refusals(tokens, logged)
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main()
