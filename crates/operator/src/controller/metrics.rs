//! Metrics as tables: one line for each, with its name and help.

/// Declares metrics, and `register_all`, which puts them onto the metrics page.
macro_rules! metrics {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident {
        $($field:ident: $kind:ty = $metric:literal, $help:literal;)+
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Default)]
        $visibility struct $name {
            $($field: $kind,)+
        }

        impl $name {
            fn register_all(registry: &mut prometheus_client::registry::Registry) -> Self {
                let metrics = Self::default();
                $(registry.register($metric, $help, metrics.$field.clone());)+
                metrics
            }
        }
    };
}

/// Declares sets of labels. A value is known when the program is built, unless the label names another type.
macro_rules! labels {
    (@type) => { &'static str };
    (@type $kind:ty) => { $kind };
    ($($name:ident { $($label:ident $(: $kind:ty)?),+ })+) => {$(
        #[allow(clippy::struct_field_names, reason = "labels have the names that dashboards know")]
        #[derive(
            Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, prometheus_client::encoding::EncodeLabelSet,
        )]
        struct $name {
            $($label: $crate::controller::metrics::labels!(@type $($kind)?),)+
        }
    )+};
}

pub(crate) use {labels, metrics};
