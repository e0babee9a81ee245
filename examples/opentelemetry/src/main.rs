//! Exports the spans of Windlass to an OpenTelemetry collector: see docs/monitor-windlass.md.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{filter::LevelFilter, prelude::*};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // To http://localhost:4317, or to OTEL_EXPORTER_OTLP_ENDPOINT.
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(SpanExporter::builder().with_tonic().build()?)
        .with_resource(Resource::builder().with_service_name("invoices").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("invoices"));
    tracing_subscriber::registry()
        .with(layer.with_filter(LevelFilter::INFO))
        .init();

    let w = windlass::connect("memory:").await?;
    let guard = w.lock("invoice/42").acquire().await?; // the span windlass.acquire
    drop(guard); // released; the span windlass.hold ends
    Ok(provider.shutdown()?)
}
