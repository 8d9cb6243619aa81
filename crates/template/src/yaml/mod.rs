//! YAML as Helm reads and writes it: by `sigs.k8s.io/yaml`, which is YAML 1.1 by way of JSON. What is plain and what is quoted, where
//! lines break and how keys are sorted is that library's; what is applied must not change because another program rendered it.

mod read;
mod scalar;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;
