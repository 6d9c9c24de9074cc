"""The head of a step's source whose launcher is in a ConfigMap. A template: never imported.

`forms` fills in the words after `@`, leaves docstring, comments and blank lines out, indents by
one space, and adds the import of the component's function. A Workflow has nine copies of the
result for each step (see `forms`), hence the short names. It needs Linux and the standard library.
"""

# ruff: noqa
# fmt: off
# mypy: ignore-errors
import signal

# SIGINT and SIGTERM. `run_step` takes over; until then they are looked for between attempts.
STOP = {2, 15}
signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
import base64, bz2, hashlib, http.client, json, os, ssl, sys, time

SHA = '@SHA256'
NAME = 'kfp-pytorch-launcher-@VERSION-' + SHA[:10]
HOME = '/var/run/secrets/kubernetes.io/serviceaccount/'
env = os.environ.get


def read(name):
    return open(HOME + name).read().strip()


def end(words, code=1):
    # The kubelet makes this file.
    try: open('/dev/termination-log', 'r+').write(words)
    except OSError: pass
    print(words, file=sys.stderr)
    sys.exit(code)


def fetch(space):
    since = {}
    while 1:
        # For how many seconds an answer of this kind is retried, and what to do about it then.
        limit, todo = 60, 'Start the step again'
        try:
            tls = ssl.create_default_context(cafile=HOME + 'ca.crt')
            # http.client uses no proxies.
            to = http.client.HTTPSConnection(env('KUBERNETES_SERVICE_HOST'), env('KUBERNETES_SERVICE_PORT'), timeout=9, context=tls)
            to.request('GET', f'/api/v1/namespaces/{space}/configmaps/{NAME}', headers={'Authorization': 'Bearer ' + read('token')})
            got = to.getresponse()
            code, got = got.status, json.load(got)
            data = base64.b64decode(got.get('binaryData', {}).get('launcher', ''))
            if hashlib.sha256(data).hexdigest() == SHA: return data
            why = got.get('message', 'wrong content')
            # Of an API server that starts, 404 may be about the whole kind.
            if code == 200 or code == 404 and NAME in why: limit, todo = 0, 'Run: kfp-pytorch launcher install PACKAGE -n ' + space
            if code in (401, 403): limit, todo = 10, f'Run: kubectl apply -n {space} -f manifests/rbac.yaml'
        except (ssl.SSLCertVerificationError, FileNotFoundError) as error: limit, todo, why = 3, 'Check ' + HOME, error
        except Exception as error: why = repr(error)
        now = time.monotonic()
        if now >= since.setdefault(limit, now) + limit: end(f'ConfigMap {space}/{NAME}: {why}. {todo}.')
        if signal.sigtimedwait(STOP, 1): end('Stopped by a signal; a job of an earlier try may be alive.', 143)


path = env('KFP_PYTORCH_LAUNCHER')
if not path and os.path.exists(HOME + 'token'):
    # KFP writes this source into a new folder.
    path = __file__ + '.zip'
    open(path, 'wb').write(bz2.decompress(fetch(read('namespace'))))
if path: sys.path.insert(0, path)
try: import kfp_pytorch
except ImportError: end('No service account token, and no kfp_pytorch installed.')
