"""The handler that one writes first: FastAPI and the exported model, nothing else.

python bare_fastapi.py EXPORT NAME PORT async|sync
"""

import sys
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

folder, name, port, kind = sys.argv[1:]
model = torch.export.load(Path(folder) / "model.pt2").module()
app = FastAPI()


class Body(BaseModel):
    instances: list


def answer(body: Body) -> dict:
    with torch.inference_mode():
        batch = torch.tensor(body.instances, dtype=torch.float32)
        best = model(batch).softmax(dim=1).max(dim=1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {"predictions": [{"class": c, "label": str(c), "score": s} for c, s in rows]}


@app.get(f"/v2/models/{name}/ready")
async def ready() -> bool:
    return True


if kind == "async":

    @app.post(f"/v1/models/{name}:predict")
    async def predict(body: Body) -> dict:
        return answer(body)
else:

    @app.post(f"/v1/models/{name}:predict")
    def predict_in_thread(body: Body) -> dict:
        return answer(body)


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)
