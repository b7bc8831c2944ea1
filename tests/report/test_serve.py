"""The live page: it follows the records, and serves nothing else."""

import json
import threading
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from ncollapse.report.serve import fingerprint, make_server
from reference.runs import write_run


@pytest.fixture
def served(tmp_path):
    write_run(tmp_path, {"optim.epochs": 5}, status="interrupted", epochs_done=2, snapshot=False)
    server = make_server(tmp_path, port=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.read().decode()


def test_page_changes_with_the_records(served):
    folder, address = served
    before = fetch(f"{address}/state")
    page = fetch(address)
    assert f'data-live="{before}"' in page
    assert "still unfinished" in page
    run = next(p for p in folder.iterdir() if p.is_dir())
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    with (run / "history.jsonl").open("a") as file:
        file.write(json.dumps({**rows[-1], "epoch": 3}) + "\n")
    after = fetch(f"{address}/state")
    assert after != before
    assert f'data-live="{after}"' in fetch(f"{address}/report.html")
    assert "3 of 5" in fetch(address)


def append_epoch(folder, epoch, **changes):
    """Let the only run go on by a row."""
    run = next(p for p in folder.iterdir() if p.is_dir())
    last = json.loads((run / "history.jsonl").read_text().splitlines()[-1])
    last["time"]["elapsed_s"] += 2.0
    last["train"] |= changes
    with (run / "history.jsonl").open("a") as file:
        file.write(json.dumps({**last, "epoch": epoch}) + "\n")


@pytest.mark.browser
def test_an_open_page_follows_without_loading_again(served, chromium):
    folder, address = served
    page = chromium.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("request", lambda request: requests.append(request.url.removeprefix(address)))
    page.goto(address)
    page.wait_for_selector("html[data-ready=true]", timeout=60000)
    assert "2 of 5" in page.locator("#table-runs").text_content()
    assert "epoch 2/5" in page.locator(".progress").text_content()
    page.locator("#theme").click()
    theme = page.evaluate("document.documentElement.dataset.theme")
    plot = "document.querySelector('#figure-collapse [data-plot]')"
    page.evaluate(f"Plotly.relayout({plot}, {{'xaxis.range': [1, 3]}})")
    page.evaluate(f"Plotly.restyle({plot}, {{visible: 'legendonly'}}, [0])")
    page.evaluate("window.kept = true")
    append_epoch(folder, 4, nc1=0.0123)
    page.wait_for_function("document.querySelector('#table-runs').textContent.includes('4 of 5')", timeout=60000)
    page.wait_for_function(f"{plot}.data[0].x.at(-1) === 4", timeout=60000)
    assert page.evaluate(f"{plot}.data[0].y.at(-1)") == 0.0123
    assert page.evaluate("window.kept") is True, "the page was not loaded again"
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate(f"{plot}.layout.xaxis.range") == [1, 3]
    assert page.evaluate(f"{plot}.data[0].visible") == "legendonly"
    assert "epoch 4/5" in page.locator(".progress").text_content()
    assert messages == []
    assert requests.count("/") == 1
    assert {path.partition("?")[0] for path in requests} <= {"/", "/state", "/update"}
    page.close()


@pytest.mark.browser
def test_new_sections_appear_and_old_figures_stay(served, chromium):
    folder, address = served
    page = chromium.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready=true]", timeout=60000)
    assert page.locator("#frames").count() == 0
    page.evaluate("document.querySelector('#figure-collapse [data-plot]').kept = true")
    write_run(folder, {"optim.epochs": 5, "seed": 1})
    page.wait_for_selector("#frames .main-svg", timeout=60000)
    assert page.evaluate("document.querySelector('#figure-collapse [data-plot]').kept") is True
    assert "Frames" in page.locator(".contents").text_content()
    page.close()


def test_an_update_holds_only_what_has_changed(served):
    folder, address = served
    state = fetch(f"{address}/state")
    fetch(address)
    same = json.loads(fetch(f"{address}/update?since={state}"))
    assert same["parts"] == same["figures"] == {}
    append_epoch(folder, 3)
    update = json.loads(fetch(f"{address}/update?since={state}"))
    assert update["state"] != state
    assert {"progress", "table-runs"} <= set(update["parts"])
    assert "notes" not in update["parts"]
    assert "epoch 3/5" in update["parts"]["progress"]
    assert {"collapse", "accuracy"} <= set(update["figures"])
    assert "phases" not in update["figures"]
    unknown = json.loads(fetch(f"{address}/update?since=long-ago"))
    assert "main" in unknown
    assert len(json.dumps(update)) < len(fetch(address)) / 10


def test_progress_has_epoch_rate_and_time_left(tmp_path):
    from ncollapse.report.progress import describe_progress
    from ncollapse.runs.record import read_run

    path = write_run(tmp_path, {"optim.epochs": 300}, status="interrupted", epochs_done=231, snapshot=False)
    record = read_run(path)
    stopped = describe_progress(record)
    assert (stopped.epoch, stopped.left) == ("231/300", "")
    going = describe_progress(replace(record, status="running"))
    assert going.rate == "0.12 s per epoch"
    assert going.left == "8.3 s left"
    assert going.share == pytest.approx(0.77)
    assert describe_progress(replace(record, status="finished")) is None


def test_nothing_else_is_served(served):
    _, address = served
    for path in ("/config.json", "/../etc/passwd", "/%2e%2e/x"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            fetch(address + path)
        assert caught.value.code == 404
        caught.value.close()
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(address, Host="evil.example")
    assert caught.value.code == 403
    caught.value.close()


def test_an_empty_folder_waits(tmp_path):
    server = make_server(tmp_path, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert "Waiting for the first record" in fetch(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
    assert fingerprint(tmp_path) == fingerprint(tmp_path)
    with pytest.raises(FileNotFoundError):
        make_server(tmp_path / "nowhere")


def test_a_port_that_is_taken_is_named(tmp_path):
    server = make_server(tmp_path, port=0)
    port = server.server_address[1]
    with pytest.raises(OSError, match=f"^host 127.0.0.1, port {port}: cannot be served: "):
        make_server(tmp_path, port=port)
    server.server_close()
