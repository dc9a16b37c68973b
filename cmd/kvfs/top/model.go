package top

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Model is the state of the view. Update returns a changed copy.
type Model struct {
	next     func() (*Frame, error) // reads a frame; calls do not overlap
	interval time.Duration

	frame         *Frame // nil: none yet
	lines         []line // of frame
	width, height int
	first         int   // of the lines that are shown
	err           error // ended the view
}

// line is a line of the view. A title is bold.
type line struct {
	text  string
	title bool
}

// Messages: it is time for the next frame; a frame, or why there is none.
type (
	dueMsg   struct{}
	frameMsg struct {
		frame *Frame
		err   error
	}
)

// Run shows the frames of r on the terminal, until a key, a signal, ctx or an error of r ends it. Only the last is an error.
func Run(ctx context.Context, r *Reader, interval time.Duration) error {
	m := &Model{next: func() (*Frame, error) { return r.Next(ctx) }, interval: interval, width: 80, height: 24}
	last, err := tea.NewProgram(m, tea.WithContext(ctx)).Run()
	if err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return err
	}
	if m, ok := last.(*Model); ok {
		return m.err
	}
	return nil
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.read }

// read reads a frame.
func (m *Model) read() tea.Msg {
	frame, err := m.next()
	return frameMsg{frame, err}
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	n := *m
	switch msg := msg.(type) {
	case dueMsg:
		return &n, n.read
	case frameMsg:
		if n.err = msg.err; n.err != nil {
			return &n, tea.Quit
		}
		n.frame = msg.frame
		n.arrange()
		return &n, tea.Tick(n.interval, func(time.Time) tea.Msg { return dueMsg{} })
	case tea.WindowSizeMsg:
		n.width, n.height = msg.Width, msg.Height
		n.arrange()
	case tea.KeyPressMsg:
		return &n, n.press(msg.String())
	}
	return &n, nil
}

// press obeys a key.
func (m *Model) press(key string) tea.Cmd {
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "up", "k":
		m.first--
	case "down", "j":
		m.first++
	case "pgup", "b":
		m.first -= m.room()
	case "pgdown", "space":
		m.first += m.room()
	case "home", "g":
		m.first = 0
	case "end", "G":
		m.first = len(m.lines)
	}
	m.bound()
	return nil
}

// arrange makes the lines anew.
func (m *Model) arrange() {
	if m.frame != nil {
		m.lines = body(m.frame, m.width)
	}
	m.bound()
}

// bound keeps the lines that are shown among those that there are.
func (m *Model) bound() { m.first = max(min(m.first, len(m.lines)-m.room()), 0) }

// room returns how many lines the terminal has for the frame.
func (m *Model) room() int { return max(m.height-1, 1) }

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(m.content())
	v.AltScreen = true
	return v
}

// content returns the lines that are shown, and the last line, which explains the keys.
func (m *Model) content() string {
	if m.frame == nil {
		return "waiting for the daemon; q quits"
	}
	end := min(m.first+m.room(), len(m.lines))
	var b strings.Builder
	for _, l := range m.lines[m.first:end] {
		text := cut(l.text, m.width)
		if l.title {
			text = "\x1b[1m" + text + "\x1b[m"
		}
		b.WriteString(text + "\n")
	}
	foot := "q quits"
	if len(m.lines) > m.room() {
		foot = fmt.Sprintf("q quits, arrows and page keys scroll: lines %d to %d of %d", m.first+1, end, len(m.lines))
	}
	b.WriteString(cut(foot, m.width))
	return b.String()
}

// cut returns as much of a text as fits into width characters.
func cut(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:max(width, 0)])
	}
	return text
}
