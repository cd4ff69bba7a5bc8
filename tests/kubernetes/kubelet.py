"""Stands for the kubelets of two nodes: the container of a pod is a process of this machine.

    python kubelet.py DIR PORT FIRST_PORT

It registers nodes n1 and n2 with the API server of KUBECONFIG, starts the pods that are given to
them, tells what becomes of them, and serves their logs at PORT with the certificate in DIR. Images
and volumes are of no account: the PATH says what a command is, and a volume is the folder of this
machine at its mount path. Names of services become 127.0.0.1, and the ports of a Dask scheduler
FIRST_PORT and the next, so that there can be one Dask cluster at a time.

Node n2 has the label and the taint by which tests place pods.
"""

import base64
import datetime
import http.server
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from kubernetes import client, config, watch

NODES = ("n1", "n2")
TAINT = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
HEARTBEAT_S = 8
REFERENCE = re.compile(r"\$(\$|\((\w+)\))")
SERVICE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+\.svc\.cluster\.local")


def now():
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_lines(source, path):
    """Write lines to a log as a container runtime does, each with the time when it came."""
    with path.open("ab") as log:
        for line in source:
            moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            log.write(moment.encode() + b" " + line)
            log.flush()


class Pod:
    """A pod of these nodes."""

    def __init__(self, kubelet, pod):
        self.kubelet = kubelet
        self.name, self.namespace = pod.metadata.name, pod.metadata.namespace
        self.uid = pod.metadata.uid
        self.spec = pod.spec
        self.container = pod.spec.containers[0]
        self.log = kubelet.folder / f"{self.uid}.log"
        self.process = None
        self.restarts = 0
        self.is_deleted = threading.Event()
        self.has_ended = threading.Event()
        self.started = now()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        pause = 1.0
        try:
            while True:
                began = now()
                environment = self.make_environment()
                self.process = subprocess.Popen(
                    [self.fill(word, environment) for word in self.words()],
                    env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
                self.log.touch()
                stamping = threading.Thread(
                    target=stamp_lines, args=(self.process.stdout, self.log), daemon=True
                )
                stamping.start()
                self.tell("Running", {"running": {"startedAt": began}}, ready=True)
                status = self.process.wait()
                end_group(self.process)
                stamping.join(10)
                code = status if status >= 0 else 128 - status
                policy = self.spec.restart_policy
                is_over = policy == "Never" or (policy == "OnFailure" and code == 0)
                if is_over or self.is_deleted.is_set():
                    break
                self.restarts += 1
                if self.is_deleted.wait(pause):
                    break
                pause *= 2
            end = {
                "exitCode": code, "startedAt": began, "finishedAt": now(),
                "reason": "Error" if code else "Completed",
            }  # fmt: skip
            self.tell("Failed" if code else "Succeeded", {"terminated": end}, ready=False)
        finally:
            self.has_ended.set()

    def words(self):
        return [*(self.container.command or ()), *(self.container.args or ())]

    def make_environment(self):
        environment = dict(os.environ)
        for source in self.container.env_from or ():
            secret = self.kubelet.api.read_namespaced_secret(source.secret_ref.name, self.namespace)
            for name, value in (secret.data or {}).items():
                environment[name] = base64.b64decode(value).decode()
        own: dict[str, str] = {}
        for each in self.container.env or ():
            own[each.name] = self.fill(each.value or "", own)
        return environment | own

    def fill(self, text, variables):
        def put(match):
            if match[1] == "$":
                return "$"
            return variables.get(match[2], match[0])

        text = SERVICE.sub("127.0.0.1", REFERENCE.sub(put, text))
        return self.kubelet.move_ports(text)

    def tell(self, phase, state, *, ready):
        word = "True" if ready else "False"
        status = {
            "phase": phase, "hostIP": "127.0.0.1", "podIP": "127.0.0.1", "startTime": self.started,
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [
                *({"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized")),
                *({"type": kind, "status": word} for kind in ("ContainersReady", "Ready")),
            ],
            "containerStatuses": [{
                "name": self.container.name, "image": self.container.image, "imageID": "",
                "restartCount": self.restarts, "ready": ready, "started": ready, "state": state,
            }],
        }  # fmt: skip
        ignoring_missing(
            self.kubelet.api.patch_namespaced_pod_status, self.name, self.namespace,
            {"status": status},
        )  # fmt: skip

    def delete(self, grace_s):
        """End the first process, and all of them after the time of grace; then forget the pod."""
        if self.is_deleted.is_set():
            return
        self.is_deleted.set()
        threading.Thread(target=self._delete, args=(grace_s,), daemon=True).start()

    def _delete(self, grace_s):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                end_group(self.process)
        self.has_ended.wait(10)
        ignoring_missing(
            self.kubelet.api.delete_namespaced_pod, self.name, self.namespace,
            body={"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}},
        )  # fmt: skip

    def kill(self):
        """End a pod that is gone already."""
        self.is_deleted.set()
        if self.process is not None:
            end_group(self.process)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def ignoring_missing(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except client.ApiException as error:
        if error.status not in (404, 409):
            print(error.status, error.body, flush=True)


class Kubelet:
    """Both nodes."""

    def __init__(self, folder, port, first_port):
        config.load_kube_config()
        self.api = client.CoreV1Api()
        self.folder = folder / "pods"
        self.folder.mkdir(exist_ok=True)
        self.port = port
        self.ports = {"8786": str(first_port), "8787": str(first_port + 1)}
        self.pods = {}

    def move_ports(self, text):
        """Put in free ports, in '--port=8786' and '127.0.0.1:8786'."""
        text = text.replace("0.0.0.0:", "127.0.0.1:")
        return re.sub(
            r"(?<=--port=)878[67]|(?<=127\.0\.0\.1:)878[67]",
            lambda match: self.ports[match[0]],
            text,
        )

    def register(self):
        for name in NODES:
            labels = {"kubernetes.io/hostname": name}
            taints = []
            if name == "n2":
                labels["pool"] = TAINT["value"]
                taints = [TAINT]
            node = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
            ignoring_missing(self.api.create_node, node)

    def beat(self):
        while True:
            for name in NODES:
                room = {"cpu": "16", "memory": "64Gi", "pods": "50"}
                status = {
                    "capacity": room, "allocatable": room,
                    "conditions": [{
                        "type": "Ready", "status": "True", "reason": "Up",
                        "lastHeartbeatTime": now(),
                    }],
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
                }  # fmt: skip
                ignoring_missing(self.api.patch_node_status, name, {"status": status})
            time.sleep(HEARTBEAT_S)

    def find(self, namespace, name):
        found = [
            pod for pod in self.pods.values() if (pod.namespace, pod.name) == (namespace, name)
        ]
        return found[-1] if found else None

    def watch(self):
        while True:
            try:
                for event in watch.Watch().stream(
                    self.api.list_pod_for_all_namespaces, timeout_seconds=60
                ):
                    self.handle(event["type"], event["object"])
            except Exception as error:  # the next watch begins anew
                print(type(error).__name__, error, flush=True)
                time.sleep(0.5)

    def handle(self, kind, pod):
        uid = pod.metadata.uid
        known = self.pods.get(uid)
        if kind == "DELETED":
            if known is not None:
                known.kill()
        elif pod.spec.node_name not in NODES:
            return
        elif pod.metadata.deletion_timestamp:
            if known is not None:
                known.delete(pod.metadata.deletion_grace_period_seconds or 0)
        elif known is None and pod.status.phase == "Pending":
            self.pods[uid] = Pod(self, pod)

    def serve_logs(self, folder):
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                asked = urllib.parse.parse_qs(query)
                since = asked.get("sinceTime", [""])[0].encode()[:19]
                keeps_times = asked.get("timestamps") == ["true"]
                _, what, namespace, name, *_ = path.split("/")
                pod = kubelet.find(namespace, name)
                if what != "containerLogs" or pod is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                with pod.log.open("rb") as log:
                    while True:
                        is_last = "follow=true" not in query or pod.has_ended.is_set()
                        for line in log:
                            if line[:19] >= since:
                                self.wfile.write(line if keeps_times else line.partition(b" ")[2])
                        self.wfile.flush()
                        if is_last:
                            return
                        time.sleep(0.1)

            def log_message(self, *arguments):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()

    def end(self, *_):
        for pod in list(self.pods.values()):
            pod.kill()
        os._exit(0)


def main():
    folder, port, first_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kubelet = Kubelet(folder, port, first_port)
    signal.signal(signal.SIGTERM, kubelet.end)
    kubelet.register()
    threading.Thread(target=kubelet.beat, daemon=True).start()
    threading.Thread(target=kubelet.serve_logs, args=(folder,), daemon=True).start()
    kubelet.watch()


if __name__ == "__main__":
    main()
