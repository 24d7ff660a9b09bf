//! The results as a picture: bars for the variants, a line for the claim times of a drain.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 220.0;
const BAR: f64 = 26.0;
const STYLE: &str = "<style>text{font:13px sans-serif;fill:#24292f}.axis{stroke:#8c959f}\
    .bar{fill:#0969da}.limit{fill:#8c959f}.line{fill:none;stroke:#0969da;stroke-width:2}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>";

/// Draws bars by name and value. The first one is the reference for the others.
pub(crate) fn bars(title: &str, unit: &str, bars: &[(&str, f64)]) -> String {
    let most = bars.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let first = bars.first().map_or(1.0, |(_, value)| *value);
    let height = 50.0 + BAR * 1.5 * bars.len() as f64;
    let mut svg = open(title, height);
    for (place, (name, value)) in bars.iter().enumerate() {
        let (y, class) =
            (44.0 + BAR * 1.5 * place as f64, if place == 0 { "limit" } else { "bar" });
        let length = (value / most * (WIDTH - LEFT - 170.0)).max(1.0);
        let _ = write!(
            svg,
            "<text x='{:.0}' y='{:.0}' text-anchor='end'>{name}</text>\
             <rect class='{class}' x='{LEFT}' y='{y:.0}' width='{length:.0}' height='{BAR}'/>\
             <text x='{:.0}' y='{:.0}'>{value:.0} {unit}, {:.2}</text>",
            LEFT - 10.0,
            y + 18.0,
            LEFT + length + 8.0,
            y + 18.0,
            value / first,
        );
    }
    svg + "</svg>\n"
}

/// Draws a line of values, from the first to the last.
pub(crate) fn line(title: &str, unit: &str, values: &[f64]) -> String {
    let most = values.iter().copied().fold(1.0, f64::max);
    let (height, bottom) = (260.0, 220.0);
    let mut svg = open(title, height);
    let step = (WIDTH - 80.0) / (values.len().max(2) - 1) as f64;
    let point = |(place, value): (usize, &f64)| {
        format!("{:.1},{:.1}", 60.0 + step * place as f64, bottom - value / most * 170.0)
    };
    let points: Vec<String> = values.iter().enumerate().map(point).collect();
    let _ = write!(
        svg,
        "<line class='axis' x1='60' y1='{bottom}' x2='{:.0}' y2='{bottom}'/>\
         <line class='axis' x1='60' y1='44' x2='60' y2='{bottom}'/>\
         <polyline class='line' points='{}'/>\
         <text x='52' y='54' text-anchor='end'>{most:.0}</text>\
         <text x='52' y='{bottom}' text-anchor='end'>0 {unit}</text>\
         <text x='60' y='242'>first claim</text>\
         <text x='{:.0}' y='242' text-anchor='end'>last claim</text>",
        WIDTH - 20.0,
        points.join(" "),
        WIDTH - 20.0,
    );
    svg + "</svg>\n"
}

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img'>\
         <title>{title}</title>{STYLE}<text x='10' y='24' font-weight='bold'>{title}</text>"
    )
}
