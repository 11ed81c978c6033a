//! Pictures of runs, as SVG: requests and refusals over time, pace against the true limit, what the gate was doing.
//!
//! Several runs stand side by side on the same axes. The same traces give the same bytes. Colours are told apart by people
//! who see few of them: they differ in lightness as well.

use std::{error::Error, time::Duration};

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::trace::{Bin, Phase, Trace};

/// A run to be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// What stands above it.
    pub name: &'a str,
    /// A line below the name, in small letters.
    pub note: &'a str,
    /// The run.
    pub trace: &'a Trace,
}

/// A picture could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw a picture")]
pub struct PictureError(#[source] Box<dyn Error + Send + Sync>);

/// Draws these runs side by side, on the same axes, below one title.
///
/// The time axis ends with the longest run, yet not later than three times the shortest, so that all can be read.
///
/// ```
/// use forbear_sim::{Trace, picture::{Column, side_by_side}};
/// use std::time::Duration;
///
/// let mut trace = Trace::new();
/// for ms in [0, 100, 200] {
///     trace.sent(Duration::from_millis(ms));
///     trace.arrived(Duration::from_millis(ms + 20), ms < 200, ms == 200);
/// }
/// trace.end(Duration::from_secs(1), None);
/// let svg = side_by_side("Three requests", &[Column { name: "mine", note: "one refused", trace: &trace }])?;
/// assert!(svg.starts_with("<svg"));
/// # Ok::<(), forbear_sim::picture::PictureError>(())
/// ```
///
/// # Errors
/// When the drawing library fails, which it has no reason to.
pub fn side_by_side(title: &str, columns: &[Column<'_>]) -> Result<String, PictureError> {
    let mut svg = String::new();
    let picture = Picture::of(columns);
    {
        let area = SVGBackend::with_string(&mut svg, picture.size()).into_drawing_area();
        picture.draw(&area, title).and_then(|()| area.present()).map_err(|e| PictureError(Box::new(e)))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What holds for all columns.
struct Picture<'a> {
    columns: Vec<(Column<'a>, Shown)>,
    beside: usize,
    unit: (&'static str, f64),
    /// The ends of the axes: time in its unit, requests a second, starts a second.
    time: f64,
    requests: f64,
    pace: f64,
    faults: bool,
}

/// A trace in bins as wide as a few points of the picture.
struct Shown {
    width: f64,
    /// What the last one holds of that.
    last: f64,
    bins: Vec<Bin>,
}

impl Shown {
    /// A number of each bin, a second.
    fn rates(&self, of: impl Fn(&Bin) -> f64) -> Vec<f64> {
        self.bins.iter().map(|bin| of(bin) / self.width).collect()
    }

    /// What the limiter allows in a second.
    fn allowed(&self) -> Vec<Option<f64>> {
        let width = |index| if index + 1 == self.bins.len() { self.last } else { self.width };
        self.bins.iter().enumerate().map(|(index, bin)| Some(bin.allowed? / width(index))).collect()
    }
}

impl<'a> Picture<'a> {
    fn of(columns: &[Column<'a>]) -> Picture<'a> {
        let times = || columns.iter().map(|column| column.trace.took());
        let shortest = times().min().unwrap_or_default();
        let span = times().max().unwrap_or_default().min(shortest * 3).max(Duration::from_millis(100));
        let beside = match columns.len() {
            0..=3 => columns.len().max(1),
            4 => 2,
            _ => 3,
        };
        let points = plot_width(beside) as usize / 2;
        let columns: Vec<(Column<'a>, Shown)> = columns
            .iter()
            .map(|column| {
                let (width, bins) = column.trace.coarse(span, points);
                let fine = column.trace.width();
                let whole = column.trace.bins().len().min(span.as_nanos().div_ceil(fine.as_nanos()) as usize);
                let each = (width.as_nanos() / fine.as_nanos()) as usize;
                let last = fine.as_secs_f64() * (whole - whole.saturating_sub(1) / each * each) as f64;
                (*column, Shown { width: width.as_secs_f64(), last, bins })
            })
            .collect();
        let unit = match span.as_secs() {
            0..=180 => ("seconds", 1.0),
            181..=10_800 => ("minutes", 60.0),
            _ => ("hours", 3600.0),
        };
        let limit = highest(&columns, 1.0, |shown| shown.allowed().into_iter().flatten().collect());
        let requests = highest(&columns, 0.98, |shown| shown.rates(|bin| f64::from(arrived(bin))));
        let starts = highest(&columns, 0.9, |shown| shown.rates(|bin| f64::from(bin.sent)));
        Picture {
            beside,
            unit,
            time: span.as_secs_f64() / unit.1,
            requests: nice(requests.max(limit * 1.3)),
            pace: nice(if limit > 0.0 { limit * 1.7 } else { starts * 1.2 }),
            faults: columns.iter().any(|(_, shown)| shown.bins.iter().any(|bin| bin.faults > 0)),
            columns,
        }
    }

    fn size(&self) -> (u32, u32) {
        let rows = self.columns.len().div_ceil(self.beside).max(1);
        (2 * MARGIN + column_width(self.beside) * self.beside as u32, HEAD + BLOCK * rows as u32 + MARGIN)
    }

    fn draw<'b>(&self, area: &Area<'b>, title: &str) -> Drawn<'b> {
        area.fill(&WHITE)?;
        let (head, body) = area.split_vertically(HEAD);
        head.draw(&Text::new(title.to_owned(), (MARGIN as i32, 10), text(20.0, INK, HPos::Left, VPos::Top)))?;
        self.legend(&head)?;
        let rows = self.columns.len().div_ceil(self.beside).max(1);
        let body = body.margin(0, MARGIN, MARGIN, MARGIN);
        for ((column, shown), place) in self.columns.iter().zip(body.split_evenly((rows, self.beside))) {
            self.column(&place, column, shown)?;
        }
        Ok(())
    }

    fn legend<'b>(&self, head: &Area<'b>) -> Drawn<'b> {
        let mut marks = vec![("served", SERVED), ("refused", REFUSED)];
        if self.faults {
            marks.push(("faults", FAULTS));
        }
        marks.extend([("starts", STARTS), ("true limit", INK), ("the client's pace", PACE)]);
        let gates = Phase::ALL.map(|phase| (phase.as_str(), colour(phase)));
        let wide = column_width(self.beside) * self.beside as u32;
        let mut at = (MARGIN as i32, 42);
        for (lead, marks) in [("", &marks[..]), ("gate:", &gates[..])] {
            let needs: i32 = marks.iter().map(|(word, _)| room(word)).sum();
            if at.0 > MARGIN as i32 && at.0 + needs > wide as i32 {
                at = (MARGIN as i32, at.1 + 20);
            }
            if !lead.is_empty() {
                head.draw(&Text::new(lead, (at.0, at.1), text(15.0, SOFT, HPos::Left, VPos::Center)))?;
                at.0 += 42;
            }
            for (word, colour) in marks {
                let (x, y) = at;
                let thick = if ["true limit", "the client's pace"].contains(word) { 1 } else { 6 };
                head.draw(&Rectangle::new([(x, y - thick), (x + 16, y + thick)], colour.filled()))?;
                head.draw(&Text::new(*word, (x + 21, y), text(15.0, SOFT, HPos::Left, VPos::Center)))?;
                at.0 += room(word);
            }
            at.0 += 10;
        }
        Ok(())
    }

    fn column<'b>(&self, place: &Area<'b>, column: &Column<'_>, shown: &Shown) -> Drawn<'b> {
        let left = (LABELS + 2) as i32;
        let name = text(18.0, INK, HPos::Left, VPos::Top);
        place.draw(&Text::new(column.name.to_owned(), (left, 4), name))?;
        let note = text(14.0, SOFT, HPos::Left, VPos::Top);
        place.draw(&Text::new(column.note.to_owned(), (left, 24), note))?;
        let (_, panels) = place.split_vertically(CAPTION);
        let (requests, rest) = panels.split_vertically(REQUESTS);
        let (pace, gate) = rest.split_vertically(PACES);
        let first = self.chart(&requests, self.requests, "requests/s")?;
        self.requests(first, shown)?;
        let second = self.chart(&pace, self.pace, "starts/s")?;
        self.paces(second, shown)?;
        self.gate(&gate, shown)
    }

    /// A panel with its axes; the time is written below the last one.
    fn chart<'b>(
        &self,
        area: &Area<'b>,
        most: f64,
        what: &str,
    ) -> Result<Chart<'_, 'b>, DrawingAreaErrorKind<std::io::Error>> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(14)
            .margin_right(RIGHT)
            .set_label_area_size(LabelAreaPosition::Left, LABELS)
            .build_cartesian_2d(0.0..self.time, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_labels(5)
            .y_max_light_lines(1)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(AXIS)
            .y_label_formatter(&|value| number(*value))
            .label_style(text(13.0, SOFT, HPos::Left, VPos::Top))
            .y_desc(what)
            .axis_desc_style(text(14.0, SOFT, HPos::Left, VPos::Top))
            .draw()?;
        Ok(chart)
    }

    fn requests<'b>(&self, mut chart: Chart<'_, 'b>, shown: &Shown) -> Drawn<'b> {
        // The highest first: what is drawn later covers its lower part.
        type Count = fn(&Bin) -> u32;
        let layers: [(RGBColor, Count, Count); 3] = [
            (FAULTS, arrived, |bin| bin.faults),
            (REFUSED, |bin| bin.served + bin.refused, |bin| bin.refused),
            (SERVED, |bin| bin.served, |bin| bin.served),
        ];
        for (colour, of, own) in layers {
            if shown.bins.iter().all(|bin| own(bin) == 0) {
                continue;
            }
            let rates = shown.rates(|bin| f64::from(of(bin)).min(self.requests * shown.width));
            self.area(&mut chart, shown, &rates, colour)?;
        }
        let all = shown.rates(|bin| f64::from(arrived(bin)));
        let Some((at, most)) = all.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return Ok(());
        };
        if most > self.requests * 1.02 {
            let x = shown.width * (at as f64 + 0.5) / self.unit.1;
            let side = if x > self.time / 2.0 { HPos::Right } else { HPos::Left };
            let label = text(13.0, INK, side, VPos::Bottom);
            let said = format!("\u{2191} up to {}/s", number(most.round()));
            chart.draw_series([Text::new(said, (x, self.requests), label)])?;
        }
        Ok(())
    }

    fn paces<'b>(&self, mut chart: Chart<'_, 'b>, shown: &Shown) -> Drawn<'b> {
        let starts = shown.rates(|bin| f64::from(bin.sent).min(self.pace * shown.width));
        self.area(&mut chart, shown, &starts, STARTS)?;
        self.line(&mut chart, shown, &shown.allowed(), INK, 2)?;
        let mut last = None;
        let pace: Vec<Option<f64>> = shown
            .bins
            .iter()
            .map(|bin| {
                last = bin.pace.or(last);
                last.map(|pace: f64| pace.min(self.pace))
            })
            .collect();
        self.line(&mut chart, shown, &pace, PACE, 2)
    }

    /// Steps of this height over the bins, filled.
    fn area<'b>(
        &self,
        chart: &mut Chart<'_, 'b>,
        shown: &Shown,
        heights: &[f64],
        fill: RGBColor,
    ) -> Drawn<'b> {
        if heights.iter().all(|height| *height <= 0.0) {
            return Ok(());
        }
        let mut points = vec![(0.0, 0.0)];
        points.extend(self.steps(shown, heights.iter().copied()));
        points.extend(points.last().map(|(x, _)| (*x, 0.0)));
        chart.draw_series([Polygon::new(points, fill.filled())])?;
        Ok(())
    }

    /// A line in steps, with gaps where there is nothing.
    fn line<'b>(
        &self,
        chart: &mut Chart<'_, 'b>,
        shown: &Shown,
        heights: &[Option<f64>],
        colour: RGBColor,
        thick: u32,
    ) -> Drawn<'b> {
        let first = heights.iter().take_while(|height| height.is_none()).count();
        let known = heights[first..].iter().map_while(|height| *height);
        let from = first as f64 * shown.width / self.unit.1;
        let points: Vec<(f64, f64)> =
            self.steps(shown, known).into_iter().map(|(x, y)| (x + from, y)).collect();
        if points.len() > 1 {
            chart.draw_series([PathElement::new(points, colour.stroke_width(thick))])?;
        }
        Ok(())
    }

    /// The corners of steps, equal neighbours as one.
    fn steps(&self, shown: &Shown, heights: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (index, height) in heights.enumerate() {
            let x = |edge: usize| (edge as f64 * shown.width / self.unit.1).min(self.time);
            match points.last_mut() {
                Some((end, level)) if *level == height => *end = x(index + 1),
                _ => points.extend([(x(index), height), (x(index + 1), height)]),
            }
        }
        points
    }

    fn gate<'b>(&self, area: &Area<'b>, shown: &Shown) -> Drawn<'b> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(RIGHT)
            .set_label_area_size(LabelAreaPosition::Left, LABELS)
            .set_label_area_size(LabelAreaPosition::Bottom, TIMES)
            .build_cartesian_2d(0.0..self.time, 0.0..1.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .y_labels(0)
            .x_labels(6)
            .axis_style(AXIS)
            .x_label_formatter(&|value| number(*value))
            .label_style(text(13.0, SOFT, HPos::Left, VPos::Top))
            .x_desc(self.unit.0)
            .y_desc("gate")
            .axis_desc_style(text(14.0, SOFT, HPos::Left, VPos::Top))
            .draw()?;
        if shown.bins.iter().all(|bin| bin.phase().is_none()) {
            let middle = text(14.0, SOFT, HPos::Center, VPos::Center);
            chart.draw_series([Text::new("no gate", (self.time / 2.0, 0.5), middle)])?;
        }
        // The shares of each bin's time, the most closed phase at the bottom. Drawn from the top: the next covers the rest.
        for (index, phase) in Phase::ALL.into_iter().enumerate() {
            let shares = shown.bins.iter().map(|bin| {
                let (all, below): (f64, f64) = (bin.phases.iter().sum(), bin.phases[index..].iter().sum());
                if all > 0.0 { below / all } else { 0.0 }
            });
            self.area(&mut chart, shown, &shares.collect::<Vec<_>>(), colour(phase))?;
        }
        Ok(())
    }
}

/// All that reached the limiter.
fn arrived(bin: &Bin) -> u32 {
    bin.served + bin.refused + bin.faults
}

/// The highest of this quantile of each run.
fn highest(columns: &[(Column<'_>, Shown)], quantile: f64, of: impl Fn(&Shown) -> Vec<f64>) -> f64 {
    let each = columns.iter().map(|(_, shown)| {
        let mut values = of(shown);
        values.sort_by(f64::total_cmp);
        let at = (values.len().saturating_sub(1) as f64 * quantile).floor() as usize;
        values.get(at).copied().unwrap_or(0.0)
    });
    each.fold(0.0, f64::max)
}

/// The next number that ends an axis well.
fn nice(value: f64) -> f64 {
    let value = if value.is_finite() && value > 0.0 { value } else { 1.0 };
    let scale = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * scale).find(|end| *end >= value * 0.999).unwrap_or(10.0 * scale)
}

/// A number without needless digits.
fn number(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn colour(phase: Phase) -> RGBColor {
    match phase {
        Phase::Open => RGBColor(225, 231, 236),
        Phase::Ramping => RGBColor(140, 190, 225),
        Phase::Probing => RGBColor(240, 220, 80),
        Phase::Paused => RGBColor(226, 150, 30),
        Phase::Tripped => RGBColor(120, 40, 10),
    }
}

fn text(size: f64, colour: RGBColor, side: HPos, height: VPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour).into_text_style(&(0, 0)).pos(Pos::new(side, height))
}

/// What a word of the legend takes, with its mark.
fn room(word: &str) -> i32 {
    38 + 7 * word.len() as i32
}

fn column_width(beside: usize) -> u32 {
    if beside == 1 { 860 } else { 430 }
}

fn plot_width(beside: usize) -> u32 {
    column_width(beside) - LABELS - RIGHT
}

const INK: RGBColor = RGBColor(35, 40, 45);
const SOFT: RGBColor = RGBColor(85, 92, 98);
const AXIS: RGBColor = RGBColor(150, 156, 162);
const GRID: RGBColor = RGBColor(228, 231, 234);
const SERVED: RGBColor = RGBColor(110, 170, 215);
const REFUSED: RGBColor = RGBColor(213, 94, 0);
const FAULTS: RGBColor = RGBColor(120, 120, 120);
const STARTS: RGBColor = RGBColor(205, 218, 228);
const PACE: RGBColor = RGBColor(0, 130, 95);

const MARGIN: u32 = 14;
const HEAD: u32 = 80;
const CAPTION: u32 = 44;
const REQUESTS: u32 = 156;
const PACES: u32 = 125;
const GATE: u32 = 84;
const BLOCK: u32 = CAPTION + REQUESTS + PACES + GATE;
const LABELS: u32 = 56;
const TIMES: u32 = 40;
const RIGHT: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_numbers_that_can_be_read() {
        for (value, end) in
            [(0.0, 1.0), (1.0, 1.0), (17.3, 20.0), (99.0, 100.0), (250.0, 300.0), (0.013, 0.016)]
        {
            assert!((nice(value) - end).abs() < 1e-9, "{value}: {}", nice(value));
        }
        for (value, text) in
            [(0.0, "0"), (0.25, "0.25"), (10.0, "10"), (1500.0, "1500"), (2.5, "2.5"), (100.0, "100")]
        {
            assert_eq!(number(value), text);
        }
    }
}
