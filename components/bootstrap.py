"""The head of a step's source whose launcher is in a ConfigMap. A template: never imported.

`forms` fills in the words after `@`, makes it short (no comments, few lines and spaces, one letter
for each name in lower case that is bound here), and adds the import of the component's function: a
Workflow keeps nine copies of the result for each step. It needs Linux and the standard library.
"""

# ruff: noqa
# fmt: off
# mypy: ignore-errors
from signal import *

# SIGINT and SIGTERM. `run_step` takes over; until then `watch` looks for them.
stop = {2, 15}
pthread_sigmask(SIG_BLOCK, stop)
import _thread, base64, bz2, hashlib, http.client, json, os, ssl, sys, time, zipfile

SHA = '@SHA256'
NAME = 'kfp-pytorch-launcher-@VERSION-' + SHA[:10]
account = '/var/run/secrets/kubernetes.io/serviceaccount/'
service = 'KUBERNETES_SERVICE_'
check = f'Check {service}* and {account}'
variable = 'KFP_PYTORCH_LAUNCHER'
env = os.environ
# KFP writes this source into a new folder.
archive = __file__ + '.zip'
namespace = last = ''
lasting = 'No API answer. '


def end(words, code=1):
    # Where a file cannot be written or nobody reads, the exit code is still this one.
    try: open('/dev/termination-log', 'r+').write(words)
    finally:
        try: print(words, file=sys.stderr)
        finally: os._exit(code)


def watch():
    # A thread, whatever call the main one waits in: a name's address, a handshake, slow bytes.
    for number in range(30):
        time.sleep(2)
        if path: return
        if sigpending() & stop: end('Stopped by a signal; a job of an earlier try may be alive.', 143)
    end(lasting + 'Start the step again.')


path = env.get(variable, '')
words = 'No service account token, and no kfp_pytorch installed.'
if path:
    words = f'{variable}={path}: no kfp_pytorch there.'
    path = os.path.abspath(path)
elif os.access(account + 'token', 0):
    _thread.start_new_thread(watch, ())
    while 1:
        # For how many seconds in a row a cause is retried, and what to do about it then.
        limit, todo = 3, check
        try:
            # One word in each: an error of http.client would print a token with line breaks.
            (namespace,), (token,) = (open(account + name).read().split() for name in ('namespace', 'token'))
            # http.client uses no proxies.
            connection = http.client.HTTPSConnection(env[service + 'HOST'], env[service + 'PORT'], timeout=9, context=ssl.create_default_context(cafile=account + 'ca.crt'))
            limit = 99
            connection.request('GET', f'/api/v1/namespaces/{namespace}/configmaps/{NAME}', headers={'Authorization': 'Bearer ' + token})
            answer = connection.getresponse()
            status, answer = answer.status, json.loads(answer.read(1 << 21))
            data = base64.b64decode(answer.get('binaryData', {}).get('launcher', ''))
            if hashlib.sha256(data).hexdigest() == SHA:
                limit, todo = 3, 'Check ' + archive
                with zipfile.ZipFile(archive, 'w') as target: [*map(target.writestr, *json.loads(bz2.decompress(data)))]
                path = archive
                break
            why = answer.get('message', 'wrong content')
            # Of an API server that starts, 404 may be about the whole kind.
            if status == 200 or status == 404 and NAME in why: limit, todo = 0, 'Run: kfp-pytorch launcher install PACKAGE -n ' + namespace
            if status in (401, 403): limit, todo = 10, (check + '. ') * (status < 403) + f'Run: kubectl apply -n {namespace} -f manifests/rbac.yaml; other accounts: see its head'
        except Exception as error:
            why = str(error)
            if 'VERIFY' in why: limit, todo = 3, check
        lasting = f'ConfigMap {namespace}/{NAME}: {why}. '
        now = time.monotonic()
        if limit != last: last, since = limit, now
        if now >= since + limit: end(lasting + todo + '.')
        time.sleep(1)
if path: sys.path.insert(0, path)
try:
    import kfp_pytorch as found
    # An installed one must not take the place of one that is missing at this path.
    found.__file__.index(path)
except (ImportError, ValueError): end(words)
