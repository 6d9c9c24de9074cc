"""What sends a request once, over HTTP or gRPC: a refusal and a broken connection are replies too.

May import `exchange` and what is beneath this package.
"""
