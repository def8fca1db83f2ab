//! Numbers in the notation of Kubernetes' quantities.

/// Powers of ten are written as exponents, so that `700m` is exactly what `0.7` is.
const DECIMAL: [(&str, &str); 9] = [
    ("n", "e-9"),
    ("u", "e-6"),
    ("m", "e-3"),
    ("k", "e3"),
    ("M", "e6"),
    ("G", "e9"),
    ("T", "e12"),
    ("P", "e15"),
    ("E", "e18"),
];
const BINARY: [(&str, f64); 6] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
];

/// Reads `2`, `0.7`, `700m`, `1e3`, `1Ki`.
pub(super) fn parse(text: &str) -> Option<f64> {
    let binary = BINARY.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let decimal = DECIMAL.iter().find_map(|(suffix, power)| Some((text.strip_suffix(suffix)?, *power)));
    let (number, power, factor) = match (binary, decimal) {
        (Some((number, factor)), _) => (number, "", factor),
        (None, Some((number, power))) => (number, power, 1.0),
        (None, None) => (text, "", 1.0),
    };
    // Rust's notation also has names for numbers that are none.
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let value: f64 = format!("{number}{power}").parse().ok().filter(|_| plain)?;
    Some(value * factor).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_numbers() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("0.7", Some(0.7)),
            ("700m", Some(0.7)),
            ("1e3", Some(1000.0)),
            ("1E3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("-.5", Some(-0.5)),
            ("+2.", Some(2.0)),
            ("1Ki", Some(1024.0)),
            ("0,7", None),
            ("inf", None),
            ("NaN", None),
            ("", None),
            ("m", None),
            ("1e999", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
