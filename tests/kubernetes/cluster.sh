#!/usr/bin/env bash
# A Kubernetes of its own on this machine, with the Dask operator; everything listens on 127.0.0.1.
#
#   cluster.sh start DIR        API server, controllers, scheduler and nodes; files go to DIR
#   cluster.sh operator DIR     the definitions of dask-kubernetes, and its operator
#   cluster.sh stop DIR         end what was started for DIR, and nothing else
#
# DTOPK_TEST_KUBERNETES names the folder with kube-apiserver, kube-controller-manager and
# kube-scheduler (1.20 or so: newer ones have other flags); etcd, openssl and kubectl are on the
# PATH, and PYTHON has the packages of dtopk's extra 'kubernetes'. Pods are processes of this machine,
# which kubelet.py starts. Clients use KUBECONFIG=DIR/kubeconfig; its contexts 'stranger' and
# 'submitter' are of users without rights.
set -euo pipefail

PORT=${KUBERNETES_TEST_PORT:-26443}
PYTHON=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)

# background NAME COMMAND...: a daemon, with its log and process id in DIR.
background() {
    local name=$1
    shift
    "$@" > "$dir/$name.log" 2>&1 < /dev/null &
    echo $! > "$dir/$name.pid"
}

# wait_for WHAT COMMAND...: for at most 60 s.
wait_for() {
    local what=$1
    shift
    for _ in $(seq 300); do
        "$@" > /dev/null 2>&1 && return 0
        sleep 0.2
    done
    echo "$what did not come about in 60 s:" >&2
    tail -5 "$dir"/*.log >&2
    return 1
}

make_certificates() {
    (
        umask 077
        openssl genrsa -out "$dir/accounts.key" 2048
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=tests of dtopk" \
            -keyout "$dir/ca.key" -out "$dir/ca.pem"
        openssl req -newkey rsa:2048 -nodes -subj "/CN=server" \
            -keyout "$dir/key.pem" -out "$dir/request.pem"
        echo "subjectAltName=IP:127.0.0.1,IP:10.111.0.1" > "$dir/names"
        openssl x509 -req -in "$dir/request.pem" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" \
            -CAcreateserial -days 2 -extfile "$dir/names" -out "$dir/cert.pem"
    ) 2> /dev/null
}

write_configuration() {
    local token
    token=$(openssl rand -hex 16)
    (
        umask 077
        printf '%s\n' "$token,tester,1,system:masters" "other-$token,stranger,2" \
            "third-$token,submitter,3" > "$dir/tokens"
        cat > "$dir/kubeconfig" << END
apiVersion: v1
kind: Config
current-context: tests
clusters:
  - {name: tests, cluster: {server: "https://127.0.0.1:$PORT", certificate-authority: $dir/ca.pem}}
users:
  - {name: tester, user: {token: $token}}
  - {name: stranger, user: {token: other-$token}}
  - {name: submitter, user: {token: third-$token}}
contexts:
  - {name: tests, context: {cluster: tests, user: tester}}
  - {name: stranger, context: {cluster: tests, user: stranger}}
  - {name: submitter, context: {cluster: tests, user: submitter}}
END
        cat > "$dir/scheduler.yaml" << END
apiVersion: kubescheduler.config.k8s.io/v1beta1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: $dir/kubeconfig}
leaderElection: {leaderElect: false}
END
    )
}

start() {
    local bin=${DTOPK_TEST_KUBERNETES:?names the folder of the programs of Kubernetes}
    mkdir -p "$dir"
    make_certificates
    write_configuration
    export KUBECONFIG=$dir/kubeconfig
    local etcd=http://127.0.0.1:$((PORT + 1)) peer=http://127.0.0.1:$((PORT + 2))
    background etcd etcd --data-dir "$dir/etcd" --unsafe-no-fsync \
        --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "default=$peer"
    # Pods have no accounts of the API here, and logs are asked for at kubelet.py.
    background apiserver "$bin/kube-apiserver" --etcd-servers="$etcd" \
        --bind-address=127.0.0.1 --advertise-address=127.0.0.1 \
        --secure-port="$PORT" --insecure-port=0 --service-cluster-ip-range=10.111.0.0/16 \
        --tls-cert-file="$dir/cert.pem" --tls-private-key-file="$dir/key.pem" \
        --token-auth-file="$dir/tokens" --authorization-mode=RBAC \
        --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://tests --service-account-key-file="$dir/accounts.key" \
        --service-account-signing-key-file="$dir/accounts.key" \
        --disable-admission-plugins=ServiceAccount
    wait_for "the API server" kubectl get --raw /readyz
    background controllers "$bin/kube-controller-manager" --kubeconfig="$KUBECONFIG" \
        --bind-address=127.0.0.1 --secure-port=$((PORT + 3)) --port=0 --leader-elect=false \
        --service-account-private-key-file="$dir/accounts.key" --root-ca-file="$dir/ca.pem" \
        --controllers='*,-nodeipam,-cloud-node-lifecycle,-attachdetach'
    background scheduler "$bin/kube-scheduler" --config="$dir/scheduler.yaml" \
        --bind-address=127.0.0.1 --secure-port=$((PORT + 4)) --port=0
    # With Dask's settings of the image.
    DASK_CONFIG=$here/../../deploy/dask.yaml \
        background kubelet "$PYTHON" "$here/kubelet.py" "$dir" $((PORT + 5)) $((PORT + 6))
    wait_for "the nodes" kubectl wait --for=condition=Ready --timeout=1s node/n1 node/n2
}

operator() {
    export KUBECONFIG=$dir/kubeconfig
    local package
    package=$("$PYTHON" -c 'from importlib.util import find_spec as find
print(find("dask_kubernetes").submodule_search_locations[0])')
    # As the server does it: the client would note the definitions in annotations, too large for it.
    kubectl apply --server-side \
        -f "$package/operator/deployment/helm/dask-kubernetes-operator/crds" > /dev/null
    wait_for "the definitions" kubectl wait --for=condition=Established --timeout=1s \
        crd/daskjobs.kubernetes.dask.org crd/daskclusters.kubernetes.dask.org \
        crd/daskworkergroups.kubernetes.dask.org crd/daskautoscalers.kubernetes.dask.org
    background operator "$PYTHON" -m kopf run -m dask_kubernetes.operator.controller --all-namespaces
    wait_for "the operator" grep -q "Initial authentication has finished" "$dir/operator.log"
}

stop() {
    local name pid
    # Whoever writes to the API server ends before it does.
    for name in operator kubelet scheduler controllers apiserver etcd; do
        [ -f "$dir/$name.pid" ] || continue
        pid=$(cat "$dir/$name.pid")
        kill "$pid" 2> /dev/null || true
        for _ in $(seq 50); do
            kill -0 "$pid" 2> /dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2> /dev/null || true
        rm -f "$dir/$name.pid"
    done
}

dir=${2:-}
case ${1:-} in
    start | operator | stop) [ -n "$dir" ] && "$1" ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
