#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: cleave.pretrained over two real workers, against transformers and peft where
they are installed."""
import hashlib, importlib.util, json, os, struct, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, Cluster, Suite
sys.path.insert(0, os.path.abspath(os.path.join(BIN, "python")))
import torch
from torch.nn import functional as F
import cleave
from cleave._export import exporter

suite = Suite()
LLAMA = os.path.join(HERE, "../golden/hf/llama")
SPLIT = [("embed_tokens..layers.0", "master"), ("layers.1", "w1"), ("norm..lm_head", "master")]
ADAPTERS = {"targets": ["q_proj", "v_proj"], "r": 2, "alpha": 8}
HAS = {name: importlib.util.find_spec(name) for name in ("transformers", "peft")}


def raised(kind, function, *args, **options):
    """The exception of that kind that the call raises."""
    try:
        function(*args, **options)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def write_llama(folder):
    """A small model, as save_pretrained writes it."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(LLAMA, "config.json")) as f:
        config = {**json.load(f), "architectures": ["LlamaForCausalLM"]}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    draw = torch.Generator().manual_seed(5)
    with open(os.path.join(LLAMA, "causal.txt")) as f:
        shapes = {name: json.loads(shape) for name, shape in (line.split(" ", 1) for line in f)}
    exporter().write_safetensors(os.path.join(folder, "model.safetensors"),
                                 {n: torch.randn(s, generator=draw).mul(0.3).numpy() for n, s in shapes.items()})
    return folder


def tokens(n=4, length=8):
    return torch.randint(0, 50, (n, length), generator=torch.Generator().manual_seed(n))


@suite.test
def stages_at_workers_give_what_one_stage_gives():
    """In eval and training mode, with what each egress row says."""
    with cleave.open(session) as rt:
        whole = cleave.pretrained(rt, llama, example=tokens(), stages=[("embed_tokens..lm_head", "master")])
        parts = cleave.pretrained(rt, llama, example=tokens(), stages=SPLIT, sends="mixed")
        rows = [(r.what, r.module) for r in rt.egress() if r.what != "weights"]
        assert rows == [("value", "llama-2.0"), ("gradient", "llama-2.1")], rows
        assert sum(r.what == "weights" for r in rt.egress()) == 9 and parts.placement == "master, w1, master"
        assert torch.equal(whole(tokens(3)), parts(tokens(3))) and whole(tokens(3)).shape == (3, 8, 50)
        for net in (whole, parts):
            optimizer = cleave.Optimizer(torch.optim.SGD, net, lr=0.1)
            for k in range(3):
                optimizer.zero_grad()
                F.cross_entropy(net(tokens()).flatten(0, 1), tokens().roll(-1, 1).flatten()).backward()
                optimizer.step()
        ours, theirs = parts.state_dict(), whole.state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
        assert not any("tokens" in r.shows for r in rt.egress()), rt.egress()


@suite.test
def models_are_those_of_transformers():
    """Losses of five steps, from files of several kinds."""
    if not HAS["transformers"]:
        return "no transformers"
    import transformers
    small = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 20}
    gpt2 = transformers.GPT2Config(vocab_size=50, n_embd=16, n_head=4, n_layer=2, n_positions=20, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2)
    without_groups = {key: n for key, n in small.items() if key != "num_key_value_heads"}
    bert = transformers.BertConfig(**without_groups, num_labels=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    for k, (net, stages, saved) in enumerate((
            (transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, tie_word_embeddings=True)), SPLIT, {}),
            (transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**small, tie_word_embeddings=False)).bfloat16(), SPLIT, {}),
            (transformers.GPT2LMHeadModel(gpt2), [("wte..h.0", "w2"), ("h.1", "w1"), ("ln_f..lm_head", "w2")], {"max_shard_size": "8KB"}),
            (transformers.BertForSequenceClassification(bert), [("embeddings..encoder.layer.0", "w1"), ("encoder.layer.1..classifier", "master")], {}))):
        folder = os.path.join(cluster.dir, f"model-{k}")
        net.save_pretrained(folder, **saved)
        net, x = net.float().train(), tokens()
        y = x.roll(-1, 1).flatten() if net(x).logits.dim() == 3 else x[:, 0] % 3
        with cleave.open(session) as rt:
            far = cleave.pretrained(rt, folder, example=x, stages=stages)
            pairs = ((far, cleave.Optimizer(torch.optim.SGD, far, lr=0.1)), (net, torch.optim.SGD(net.parameters(), lr=0.1)))
            for step in range(5):
                losses = []
                for model, optimizer in pairs:
                    optimizer.zero_grad()
                    output = model(x)
                    loss = F.cross_entropy(getattr(output, "logits", output).flatten(0, -2), y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                assert abs(losses[0] - losses[1]) < 1e-6, (type(net), step, losses)
            theirs = net.state_dict()
            assert max(float((v - theirs[n]).abs().max()) for n, v in far.state_dict().items()) < 1e-5, type(net)


@suite.test
def adapters_learn_alone_and_peft_opens_them():
    folder = os.path.join(cluster.dir, "adapters")
    with cleave.open(session) as rt:
        far = cleave.pretrained(rt, llama, example=tokens(), stages=SPLIT, lora={**ADAPTERS, "rslora": True})
        start = far.state_dict()
        assert len(far.remote_parameters()) == 8 and all(".lora_" in n for n in far.remote_parameters())
        with cleave.Training(far, optimizer={"kind": "adamw", "lr": 1e-2}) as c:
            losses = [c.forward_backward(tokens(), tokens().roll(-1, 1)) if k % 2 == 0 else c.optim_step() for k in range(20)][::2]
            assert losses[-1].result().loss < losses[0].result().loss
            out = c.forward(tokens(3)).result()
            c.save_adapters(folder)
        now = far.state_dict()
        moved = {n for n in now if not torch.equal(now[n], start[n])}
        assert moved == set(far.remote_parameters()), moved
    if not HAS["peft"]:
        return "no peft"
    import peft, transformers
    net = transformers.AutoModelForCausalLM.from_pretrained(llama)
    assert (peft.PeftModel.from_pretrained(net, folder).eval()(tokens(3)).logits - out).abs().max().item() < 1e-5


@suite.test
def weights_of_a_worker_s_own_disk_are_not_sent():
    with cleave.open(session) as rt:
        far = cleave.pretrained(rt, llama, example=tokens(), stages=SPLIT, weights={"w1": {"artifact": "base", "sha256": digest}}, lora=ADAPTERS)
        plain = cleave.pretrained(rt, llama, example=tokens(), stages=[("embed_tokens..lm_head", "master")])
        assert torch.equal(far(tokens()), plain(tokens()))
        assert not [r for r in rt.egress() if r.what == "weights"], rt.egress()


def broken(name, data, config=None, index=None):
    """A folder with such a file."""
    folder = os.path.join(cluster.dir, name)
    write_llama(folder)
    if data is None:
        os.remove(os.path.join(folder, "model.safetensors"))
    else:
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(data)
    for file, text in (("config.json", config), ("model.safetensors.index.json", index)):
        if text is not None:
            with open(os.path.join(folder, file), "w") as f:
                f.write(text)
    return folder


def headed(header):
    return struct.pack("<Q", len(header)) + header


@suite.test
def folders_and_stages_that_cannot_be_are_refused_in_words():
    one = b'{"lm_head.weight": {"dtype": "F32", "shape": %s, "data_offsets": %s}}'
    folders = {
        "neither model.safetensors nor": broken("none", None), "fewer than 8 bytes": broken("empty", b""),
        "its header has 1099511627776 bytes": broken("long", struct.pack("<Q", 1 << 40)), "header is wrong: JSONDecodeError": broken("text", headed(b"{")),
        "header is wrong: RecursionError": broken("deep", headed(b"[" * 100000)), "header is wrong: AttributeError": broken("list", headed(b"[]")),
        "has the bytes 0 to 4": broken("short", headed(one % (b"[2]", b"[0, 4]")) + b"1234"), "has the bytes 0 to 8": broken("behind", headed(one % (b"[2]", b"[0, 8]"))),
        "of F32 [-1]": broken("negative", headed(one % (b"[-1]", b"[0, 0]"))), "the safetensors files of": broken("other", headed(b"{}")),
        "'../x' is no file": broken("path", None, index='{"weight_map": {"a": "../x"}}'), "config.json: Expecting": broken("config", b"", config="{"),
        "architectures=['X']": broken("class", b"", config='{"model_type": "llama", "architectures": ["X"]}'), "there is no ": "/nowhere"}
    given = [
        ("it has embed_tokens, layers, norm, lm_head", {"stages": [("embed", "master")]}), ("stages is empty", {"stages": []}),
        ("'k_prj' of lora or freeze", {"lora": {**ADAPTERS, "targets": ["q_proj", "k_prj"]}}), ("'*.bias' of lora or freeze", {"freeze": ["*.bias"]}),
        ("lora={'bias': ...}", {"lora": {**ADAPTERS, "bias": "all"}}), ("a list of names", {"lora": {"targets": "q_proj", "r": 2}}),
        ("no stage is at w2", {"weights": {"w2": {"artifact": "a", "sha256": ""}}}), ("example 0 is torch.int32", {"example": tokens().int()}),
        ("no worker 'w9'|'w9'", {"stages": [("embed_tokens..lm_head", "w9")]})]
    with cleave.open(session) as rt:
        for text, folder in folders.items():
            e = raised(cleave.Error, cleave.pretrained, rt, folder, stages=SPLIT, example=tokens())
            assert text in str(e), (text, e)
        for text, options in given:
            e = raised(cleave.Error, cleave.pretrained, rt, llama, **{"stages": SPLIT, "example": tokens(), **options})
            assert any(part in str(e) for part in text.split("|")), (text, e)
        tied = broken("tied", None, config=json.dumps({**json.load(open(os.path.join(llama, "config.json"))), "tie_word_embeddings": True}))
        os.link(os.path.join(llama, "model.safetensors"), os.path.join(tied, "model.safetensors"))
        e = raised(cleave.InvalidError, cleave.pretrained, rt, tied, stages=[("embed_tokens..layers.1", "w1"), ("norm..lm_head", "master")], example=tokens())
        assert "load both at one" in str(e), e
        newer = broken("newer", None, config=json.dumps({**json.load(open(os.path.join(llama, "config.json"))), "auto_map": {}}))
        os.link(os.path.join(llama, "model.safetensors"), os.path.join(newer, "model.safetensors"))
        for keys, text in (((), "'auto_map' is not known"), (["hidden_act"], "lists 'hidden_act', which is known"), ("auto_map", "it is a list of names")):
            e = raised(cleave.InvalidError, cleave.pretrained, rt, newer, stages=SPLIT, example=tokens(), ignore_keys=keys)
            assert text in str(e), (text, e)
        cleave.pretrained(rt, newer, stages=SPLIT, example=tokens(), ignore_keys=["auto_map"], name="newer")
        far = cleave.pretrained(rt, llama, stages=SPLIT, example=tokens())
        assert "[4, 9]" in (e := str(raised(cleave.InvalidError, far, tokens(4, 9)))), e
    assert not rt.leaks


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        llama = write_llama(os.path.join(folder, "llama"))
        with open(os.path.join(llama, "model.safetensors"), "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        with Cluster(2, f"artifacts:\n  base: {{file: {llama}/model.safetensors, sha256: {digest}}}\n") as cluster:
            session = cluster.session("python", "")
            suite.main()
