"""The predictor: serves an export that training wrote, through KServe's HTTP server.

Runs in the predictor's pod. May import kserve, torch and, of the launcher, only its constants.
"""
