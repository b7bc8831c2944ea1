"""The live page: it follows the records, and serves nothing else."""

import json
import threading
import urllib.error
import urllib.request

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


@pytest.mark.browser
def test_an_open_page_refreshes_itself(served, chromium):
    folder, address = served
    page = chromium.new_page()
    messages = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(address)
    page.wait_for_selector("html[data-ready=true]", timeout=60000)
    assert "2 of 5" in page.locator("#table-runs").text_content()
    run = next(p for p in folder.iterdir() if p.is_dir())
    last = json.loads((run / "history.jsonl").read_text().splitlines()[-1])
    with (run / "history.jsonl").open("a") as file:
        file.write(json.dumps({**last, "epoch": 4}) + "\n")
    page.wait_for_function("document.querySelector('#table-runs').textContent.includes('4 of 5')", timeout=60000)
    assert messages == []
    page.close()


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
