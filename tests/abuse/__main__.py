"""Attack a server and print what each attack costs an honest client:

PYTHONPATH=tests python -m abuse                        all attacks, against a small server of its own
PYTHONPATH=tests python -m abuse digits bad_words --short
PYTHONPATH=tests python -m abuse --url http://127.0.0.1:8000 --key HONEST --hostile-key MALLORY
"""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from abuse.attacker import Attacker
from abuse.attacks import attack_names
from abuse.honest import Honest
from abuse.measure import HEADER, LONG, SHORT, measure
from abuse.setup import HONEST_KEY, HOSTILE_KEYS, attacked_model, attacked_server
from abuse.wire import Target
from support.nginx import behind_nginx


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m abuse", description=__doc__)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="default: all of them")
    parser.add_argument("--url", help="a running server; default: a server of a tiny random model")
    parser.add_argument("--key", default=HONEST_KEY, help="the honest client's key")
    parser.add_argument("--hostile-key", action="append", help="repeat it for several hostile tenants")
    parser.add_argument("--tenants", type=int, default=1, help="number of hostile tenants")
    parser.add_argument("--short", action="store_true", help="the form that the gate runs")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds until a probe is lost")
    parser.add_argument("--proxy", action="store_true", help="put nginx before the server of its own")
    parser.add_argument("--probe", help="another honest request than the attack names")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        url = chosen.url
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(
                attacked_server(attacked_model(folder), "--trusted-proxy", "127.0.0.1")
            )
            (folder / "nginx").mkdir()
            url = (
                stack.enter_context(behind_nginx(server.url, folder / "nginx"))
                if chosen.proxy
                else server.url
            )
        models = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {chosen.key}"}).json()[
            "data"
        ]
        keys = (chosen.hostile_key or list(HOSTILE_KEYS))[: chosen.tenants]
        hostile = [Target(url, key, models[0]["id"], models[0]["max_model_len"]) for key in keys]
        honest = Honest(Target(url, chosen.key), chosen.patience)
        attacker = stack.enter_context(Attacker())
        print(HEADER, flush=True)
        for name in chosen.attacks or attack_names():
            form = SHORT if chosen.short else LONG
            print(measure(name, honest, hostile, attacker, form, chosen.probe).row(), flush=True)


if __name__ == "__main__":
    main()
