"""Messages about traces that cannot be exported."""

NO_SDK = "needs OpenTelemetry's SDK: pip install '.[otel]' in a checkout of rdzv-server"


def bad_exporter(variable: str, exporter: str) -> str:
    return f"{variable} must be otlp or none, not {exporter!r:.60}"


def traces_lost(why: str) -> str:
    return f"--otel: traces are lost, but nothing else is affected: {why}"
